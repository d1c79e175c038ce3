"""Machines in a process: performing their effects, committing, leases, and the health of the store."""
