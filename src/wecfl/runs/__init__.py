"""Runs: from a federation and a method to a result and a run folder."""
