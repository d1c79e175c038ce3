"""The audit: what every hop lost, doubled and put out of order, message by message."""
