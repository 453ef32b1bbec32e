"""The components that methods are made of, and the objectives F and R."""
