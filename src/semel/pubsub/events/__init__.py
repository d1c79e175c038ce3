"""Event handlers: which event goes where, as which HTTP request, and what its answer means."""
