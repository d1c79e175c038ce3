"""Checks of the numbers that a calculation is made from. Each says which value is wrong and what it may be."""

from __future__ import annotations

import math

from semel.errors import ConfigError


def probability(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ConfigError(f"{name} is {value}, which is no probability", fix=f"give {name} a value from 0 to 1")


def whole(name: str, value: float, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} is {value!r}", fix=f"give {name} a whole number from {least} up")


def not_negative(name: str, value: float) -> None:
    if not value >= 0 or math.isinf(value):
        raise ConfigError(f"{name} is {value}", fix=f"give {name} a number from 0 up")


def positive(name: str, value: float) -> None:
    if not value > 0 or math.isinf(value):
        raise ConfigError(f"{name} is {value}", fix=f"give {name} a number above 0")
