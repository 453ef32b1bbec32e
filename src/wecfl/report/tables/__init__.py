"""Tables of runs and of newcomers, as texts and for the terminal."""
