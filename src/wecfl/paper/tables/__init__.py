"""The tables: the rows, the tables to read that are made of them, and their files."""
