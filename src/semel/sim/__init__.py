"""A made-up world in which the production machines run: one seed decides its weather, its faults and its timing.

>>> from semel.sim import run
>>> run(7).holds
True
"""

from semel.sim.scenario import Report, Sweep, run, sweep

__all__ = ["Report", "Sweep", "run", "sweep"]
