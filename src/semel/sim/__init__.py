"""A made-up world in which the production machines run: one seed decides its weather, its faults and its timing.

>>> from semel.sim import run
>>> run(7).holds
True
"""

from semel.sim.report import Report, Sweep
from semel.sim.scenario import run
from semel.sim.sweep import sweep

__all__ = ["Report", "Sweep", "run", "sweep"]
