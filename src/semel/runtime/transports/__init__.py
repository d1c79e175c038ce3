"""Ways to carry messages between processes."""
