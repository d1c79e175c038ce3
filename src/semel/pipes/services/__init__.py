"""Services at the end of pipes: persistent storage with its two clients, and channels."""
