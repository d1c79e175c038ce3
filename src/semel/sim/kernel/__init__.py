"""Outboxes, a hub and inboxes: the machines of the kernel on stores that crash and over links that lose."""
