"""What is true whatever the protocol: envelopes, positions, dedup, resend, leases, the ledger, a store's promises.

Nothing here reads a clock, draws a random number, opens a socket or a database. Time, ids and chance come in as
arguments; what should happen goes out as effects.
"""
