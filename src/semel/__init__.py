"""Semel: exactly-once messaging that can prove it."""

from semel import errors
from semel.kernel.envelope import Envelope
from semel.kernel.store import Tx
from semel.stores.open import open_store

__version__ = "0.1.0"

__all__ = ["Envelope", "Tx", "__version__", "errors", "open_store"]
