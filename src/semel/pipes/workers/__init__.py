"""The machines that a path is built from: stages, in memory or on the store."""
