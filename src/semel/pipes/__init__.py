"""Delivery paths: how they are written, what they promise, and the machines that they are made of.

`notation`, `tables` and `compose` make a `path`; `plan` calculates it and `solve` finds the options that reach what is
wanted; `build` turns it into workers and links, which `semel.sim.pipes` simulates and `semel.runtime.pipes` runs.
"""

from semel.pipes.build import build
from semel.pipes.compose import hop, inf, pipe_ends, point, points
from semel.pipes.notation import format_path, parse_path
from semel.pipes.path import ConfirmOn, DedupBy, Hop, Options, Path, Pipe, Point
from semel.pipes.plan import plan
from semel.pipes.solve import solve
from semel.pipes.tables import parse_tables

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
