"""A run on disk: its writer, its readers, and the schemas of its files."""
