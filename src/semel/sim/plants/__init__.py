"""Known mistakes, one switch each. A checker that does not notice them is broken.

    with planted("no-dedup"):
        ...          # everything in here runs with the bug

Production code knows nothing of this: a plant replaces a method while it is switched on, and puts it back afterwards.
Each is caught by one of the worlds (`semel sim --plant NAME`), but for those that are about a promise of a single store
and too rare to be met by chance: the contract suite catches them.
"""

from semel.sim.plants import client, hub, inbox, kernel, pipes  # noqa: F401  (each adds its own to PLANTS)
from semel.sim.plants.registry import PLANTS, Plant, find, planted

__all__ = ["PLANTS", "Plant", "find", "planted"]
