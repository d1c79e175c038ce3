"""The data pipeline on Spark: a source, a sink, transforms, pipelines and the audit.

The names here are loaded when they are asked for, because pyspark takes a while and not everybody has it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semel.spark.pipeline import Pipeline
    from semel.spark.session import check_executors, register, spark_session
    from semel.spark.transforms import dedupe_by_id, dedupe_by_index, in_session_order, merge_regions, settled_windows

__all__ = [
    "Pipeline",
    "check_executors",
    "dedupe_by_id",
    "dedupe_by_index",
    "in_session_order",
    "merge_regions",
    "register",
    "settled_windows",
    "spark_session",
]

_LATER = {
    "Pipeline": "semel.spark.pipeline",
    "dedupe_by_id": "semel.spark.transforms",
    "dedupe_by_index": "semel.spark.transforms",
    "in_session_order": "semel.spark.transforms",
    "merge_regions": "semel.spark.transforms",
    "settled_windows": "semel.spark.transforms",
    "check_executors": "semel.spark.session",
    "register": "semel.spark.session",
    "spark_session": "semel.spark.session",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'semel.spark' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    return __all__
