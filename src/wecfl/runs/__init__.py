"""A run in memory: its records, its result, attacks and newcomers."""
