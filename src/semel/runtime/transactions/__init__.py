"""Transactions of the user's own, in the form in which they have them."""

from semel.runtime.transactions.base import bind

__all__ = ["bind"]
