"""A planned path as a picture in a file: PNG, or an HTML page that needs nothing from outside."""

from __future__ import annotations

from html import escape
from io import StringIO
from pathlib import Path as File
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigError

if TYPE_CHECKING:
    from semel.pipes.plan.curves import Curve
    from semel.pipes.plan.plan import Plan

ENDINGS = (".png", ".html")
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: #1b1f24 }}
code {{ font: 13px ui-monospace, Menlo, Consolas, monospace; overflow-wrap: anywhere }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums }}
td, th {{ border-bottom: 1px solid #d0d7de; padding: .3rem .8rem; text-align: right }}
td:first-child, th:first-child, td:last-child, th:last-child {{ text-align: left }}
.wide {{ overflow-x: auto }}
.wide > svg {{ max-width: none }}
figure {{ margin: 1.5rem 0 }}
figure svg {{ max-width: 100%; height: auto }}
</style>
</head>
<body>
<h1>{title}</h1>
<p><code>{path}</code></p>
<div class="wide">{drawing}</div>
<p>{words}</p>
<div class="wide"><table>
<tr><th>hop</th><th>R</th><th>UR</th><th>R so far</th><th>UR so far</th><th>sends</th><th>mode</th></tr>
{rows}
</table></div>
<figure>{charts}</figure>
<ul>
{notes}
</ul>
</body>
</html>
"""


def check_plot_file(file: File) -> None:
    """Before any work is done: a file that cannot be written is a fault of the command line."""
    if file.suffix.lower() not in ENDINGS:
        raise ConfigError(f"--plot {file} is neither PNG nor HTML", fix="name a file that ends in .png or .html")
    if not file.absolute().parent.is_dir():
        raise ConfigError(f"there is no folder {file.parent}", fix="create it, or name another file")
    _pyplot_parts()


def write_plot(plan: Plan, file: File) -> None:
    from semel.pipes.plan.curves import over_loss, over_retries

    curves = [over_retries(plan.path), over_loss(plan.path)]
    try:
        if file.suffix.lower() == ".png":
            _figure(curves, _title(plan)).savefig(file, format="png", dpi=150)
        else:
            file.write_text(_page(plan, _svg(curves)), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror or error}", fix="name another file") from None


def _pyplot_parts() -> Any:
    try:
        import matplotlib.figure
    except ImportError:
        fix = "in a checkout: make setup; elsewhere: pip install 'semel[plot]'"
        raise ConfigError("--plot needs the matplotlib package", fix=fix) from None
    return matplotlib


def _title(plan: Plan) -> str:
    return f"{plan.path.first.name} to {plan.path.last.name}"


def _figure(curves: list[Curve], title: str | None = None) -> Any:
    """Drawn without pyplot: it would look for a screen and keep every figure."""
    figure = _pyplot_parts().figure.Figure(figsize=(10, 4), layout="constrained")
    if title is not None:
        figure.suptitle(title, parse_math=False)
    for axes, curve in zip(figure.subplots(1, len(curves), sharey=True), curves, strict=True):
        marks = {"marker": "o", "markersize": 3.5} if curve.label == "retries" else {}
        axes.plot(curve.x, curve.reliability, color="#0969da", label="reliability R", **marks)
        axes.plot(curve.x, curve.uniqueness, color="#bc4c00", linestyle="--", label="uniqueness UR", **marks)
        axes.set_xlabel(curve.label)
        axes.set_ylim(-0.03, 1.03)
        axes.grid(alpha=0.25)
        axes.legend(loc="lower right" if curve.label == "retries" else "lower left")
    return figure


def _svg(curves: list[Curve]) -> str:
    matplotlib = _pyplot_parts()
    text = StringIO()
    # without a salt and with a date, the same path would give another file every time
    with matplotlib.rc_context({"svg.hashsalt": "semel"}):
        _figure(curves).savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]


def _page(plan: Plan, charts: str) -> str:
    from semel.pipes.language.draw import draw_svg

    rows = []
    for hop in plan.hops:
        so_far = ("", "") if hop.so_far is None else (hop.so_far.reliability, hop.so_far.uniqueness)
        cells = [hop.name, hop.alone.reliability, hop.alone.uniqueness, *so_far, hop.transmissions, hop.mode]
        texts = [f"{cell:.6g}" if isinstance(cell, float) else escape(str(cell)) for cell in cells]
        rows.append("<tr>" + "".join(f"<td>{text}</td>" for text in texts) + "</tr>")
    return _PAGE.format(
        title=escape(_title(plan)),
        path=escape(str(plan.path)),
        drawing=draw_svg(plan.path),
        words=f"Reliability {plan.reliability:.9g}, uniqueness {plan.uniqueness:.9g}: {plan.mode}.",
        rows="\n".join(rows),
        charts=charts,
        notes="\n".join(f"<li>{escape(note)}</li>" for note in plan.notes),
    )
