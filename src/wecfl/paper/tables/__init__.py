"""The tables: their rows, the tables of texts that are made of the rows, and their files."""
