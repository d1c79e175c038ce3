"""Pipe nodes: the workers of paths in a process, and the links between processes."""
