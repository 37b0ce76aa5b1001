"""Parquet: a row a sample."""

from typing import Any

import pyarrow as pa

from stager.errors import UsageError
from stager.layouts.table.rows import TableRows

PLAIN = (bool, int, float, str, list, dict, bytes)


def read_parquet(name: str, data: bytes) -> TableRows:
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(pa.BufferReader(data))
        if len(set(table.column_names)) < table.num_columns:
            raise UsageError(f"{name}: two columns have one name", hint="rename one of them")
        columns = {
            column: [_plain(value) for value in table[column].to_pylist()] for column in table.column_names
        }
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        told = str(error).split("\n", 1)[0]
        raise UsageError(f"{name} cannot be read as Parquet: {told}", hint="is it whole?") from None
    return TableRows(columns, [f"row {number}" for number in range(table.num_rows)])


def _plain(value: Any) -> Any:
    """Dates and decimals as texts."""
    return value if value is None or isinstance(value, PLAIN) else str(value)
