"""`semel demo`: real processes, a link that loses, doubles and cuts, kill -9, and the count at the end.

from semel.demo import DemoOptions, run
result = run(DemoOptions(messages=500), console)
"""

from semel.demo.options import DemoOptions
from semel.demo.report import DemoResult
from semel.demo.show import run

__all__ = ["DemoOptions", "DemoResult", "run"]
