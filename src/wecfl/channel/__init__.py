"""What is between a client and the server: absence, loss, lies, noise."""
