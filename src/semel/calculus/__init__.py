"""The arithmetic of delivery: what a path of links, retries, dedup and stores promises, and what counts show.

Describe a path with the elements, ask for its `figures`, compare them with `MessageCounts` of what was measured.
"""

from semel.calculus.dedup import (
    leak,
    monotonic_reliability,
    span_for_leak,
    span_of_size,
    span_of_time,
    strict_reliability,
    uniqueness_of_leak,
)
from semel.calculus.elements import (
    Crash,
    Dedup,
    DurableElement,
    Element,
    LinkElement,
    MeterElement,
    ParallelElement,
    Passage,
    PipeElement,
    Series,
)
from semel.calculus.figures import (
    Figures,
    Sigma,
    Unreachable,
    distribution,
    figures,
    generating,
    product_bound,
    sigma,
    transmissions,
    variance,
    window_for_throughput,
)
from semel.calculus.jet import Jet
from semel.calculus.mode import DeliveryMode, MessageCounts, Mode, ModeVerdict, sample_size
from semel.calculus.spec import PassOrder, PipeSpec
from semel.calculus.timing import (
    copies_without_loss,
    expected_attempts,
    overlap,
    time_per_message,
)

__all__ = [
    "Crash",
    "Dedup",
    "DeliveryMode",
    "DurableElement",
    "Element",
    "Figures",
    "Jet",
    "LinkElement",
    "MessageCounts",
    "MeterElement",
    "Mode",
    "ModeVerdict",
    "ParallelElement",
    "PassOrder",
    "Passage",
    "PipeElement",
    "PipeSpec",
    "Series",
    "Sigma",
    "Unreachable",
    "copies_without_loss",
    "distribution",
    "expected_attempts",
    "figures",
    "generating",
    "leak",
    "monotonic_reliability",
    "overlap",
    "product_bound",
    "sample_size",
    "sigma",
    "span_for_leak",
    "span_of_size",
    "span_of_time",
    "strict_reliability",
    "time_per_message",
    "transmissions",
    "uniqueness_of_leak",
    "variance",
    "window_for_throughput",
]
