"""Paths of pipes in virtual time: how much arrives, how often, in which order."""

from semel.sim.pipes.simulate import HopCounts, Simulated, simulate

__all__ = ["HopCounts", "Simulated", "simulate"]
