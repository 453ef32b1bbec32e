"""What happens between a client and the server: lies (attacks) and noise (privacy)."""
