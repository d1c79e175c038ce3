"""Delivery paths: how they are written, what they promise, and the machines that they are made of.

`notation`, `tables` and `compose` make a `path`; `plan` calculates it and `solve` finds the options that reach what is
wanted; `build` turns it into workers and links, which `semel.sim.pipes` simulates and `semel.runtime.pipes.node` runs.
"""

from semel.pipes.language.compose import hop, inf, pipe_ends, point, points
from semel.pipes.language.notation import format_path, parse_path
from semel.pipes.language.options import ConfirmOn, DedupBy, Options
from semel.pipes.language.path import Hop, Path, Pipe, Point
from semel.pipes.language.tables import parse_tables
from semel.pipes.plan.plan import plan
from semel.pipes.plan.solve import solve
from semel.pipes.workers.build import build

__all__ = [
    "ConfirmOn",
    "DedupBy",
    "Hop",
    "Options",
    "Path",
    "Pipe",
    "Point",
    "build",
    "format_path",
    "hop",
    "inf",
    "parse_path",
    "parse_tables",
    "pipe_ends",
    "plan",
    "point",
    "points",
    "solve",
]
