"""SVG as text: one function for each kind of element that our pictures are made of.

Text and the values of attributes are escaped here and nowhere else. Numbers have one decimal at most, a tenth of a
pixel. In names of attributes `_` stands for `-`, and one at the end is dropped: Python has taken `class`.
"""

from __future__ import annotations

from html import escape


def element(name: str, *inside: str, **attributes: str | float | None) -> str:
    """`inside` is SVG. An attribute that is None is left out."""
    stated = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(number(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{stated}>{''.join(inside)}</{name}>" if inside else f"<{name}{stated}/>"


def number(value: str | float) -> str:
    """As it is written in an attribute; words stay words."""
    if isinstance(value, str):
        return value
    text = f"{value:.1f}"
    return text.removesuffix(".0")


def picture(width: float, height: float, /, *inside: str, **attributes: str | float | None) -> str:
    """An `<svg>` of this size, an element a line."""
    box = f"0 0 {number(width)} {number(height)}"
    return element("svg", "\n", "\n".join(inside), "\n", **attributes, viewBox=box)


def title(text: str, **attributes: str | float | None) -> str:
    """What is shown on pointing at what this stands in."""
    return element("title", escape(text), **attributes)


def label(x: float, y: float, text: str, **attributes: str | float | None) -> str:
    return element("text", escape(text), x=x, y=y, **attributes)


def box(x: float, y: float, width: float, height: float, **attributes: str | float | None) -> str:
    return element("rect", x=x, y=y, width=width, height=height, **attributes)


def line(*way: str | float, **attributes: str | float | None) -> str:
    """A path: letters that say how to go on, each followed by its numbers."""
    return element("path", d=along(*way), **attributes)


def along(*way: str | float) -> str:
    parts: list[str] = []
    for before, part in zip(("", *way), way, strict=False):
        needs_space = not isinstance(part, str) and not isinstance(before, str)
        parts.append(f" {number(part)}" if needs_space else number(part))
    return "".join(parts)
