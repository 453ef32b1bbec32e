"""Algorithm 1, and what it works on: a state, a plan, an engine, a method."""
