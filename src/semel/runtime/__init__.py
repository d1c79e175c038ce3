"""What touches the world: performing effects, speaking to peers, exporting the ledger."""
