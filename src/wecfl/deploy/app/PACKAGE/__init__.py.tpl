"""A federation of your clients."""
