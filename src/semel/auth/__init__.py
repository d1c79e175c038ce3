"""Who may do what: access keys, tokens, and whether a request carries a good one. Pure."""
