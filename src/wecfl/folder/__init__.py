"""A run on disk: what writes it, what reads it, and the files' own promises."""
