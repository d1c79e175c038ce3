"""The ledger and the index of streams as Parquet segments."""
