"""What changes updates between a client and the server: attacks, and noise for privacy."""
