"""Lists and maps that are NULL, on their way from Spark to Python.

Spark's Arrow writer takes time with the square of the rows in a batch for them: 100,000 rows with one such map took
1.2 s where empty maps took 0.05. So they cross as empty ones, with a flag beside them, and are made NULL again in
Python. The way back has no such cost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, MapType

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

_FLAG = "semel_null_"


def filled(df: DataFrame) -> DataFrame:
    """The rows with empty lists and maps for those that are NULL, and a flag for each such column."""
    names = {field.name: field.dataType for field in df.schema if field.nullable and _is_list(field.dataType)}
    if not names:
        return df
    flags = {f"{_FLAG}{name}": F.col(f"`{name}`").isNull() for name in names}
    flagged = df.withColumns(flags)
    return flagged.withColumns({name: F.coalesce(F.col(f"`{name}`"), _empty(kind)) for name, kind in names.items()})


def with_headers(df: DataFrame) -> DataFrame:
    """Messages, for whose headers NULL and none are the same."""
    if "headers" not in df.columns or not isinstance(kind := df.schema["headers"].dataType, MapType):
        return df
    return df.withColumn("headers", F.coalesce(F.col("headers"), _empty(kind)))


def emptied(table: pa.Table) -> pa.Table:
    """Undo `filled`."""
    for flag in [name for name in table.column_names if name.startswith(_FLAG)]:
        at = table.column_names.index(flag.removeprefix(_FLAG))
        field, is_null = table.field(at), table.column(flag)
        table = table.drop_columns([flag])
        if pc.any(is_null).as_py():
            values = pc.if_else(is_null, pa.scalar(None, field.type), table.column(at))
            table = table.set_column(at, field.with_nullable(True), values)
    return table


def _is_list(kind: DataType) -> bool:
    return isinstance(kind, (ArrayType, MapType))


def _empty(kind: DataType) -> Column:
    return (F.create_map() if isinstance(kind, MapType) else F.array()).cast(kind)
