"""The server process: its listener, the pub/sub service behind it, and what operators ask of it."""
