"""A Flower federation as processes, and the app that runs in them."""
