"""Parquet files with photos in their rows, as Hugging Face writes them."""

import io
import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from making import jpeg

NAMES = ["cat", "dog", "eel"]
ABOUT = {"info": {"features": {"label": {"_type": "ClassLabel", "names": NAMES}}}}


def photos(numbers: Iterable[int], **more: Any) -> pa.Table:
    """A struct of bytes and path, a label by number, and a fold."""
    known = list(numbers)
    columns = {
        "image": pa.array(
            [{"bytes": jpeg(number), "path": f"{number}.jpg"} for number in known],
            pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
        ),
        "label": pa.array([number % 3 for number in known]),
        "number": pa.array(known),
        "fold": pa.array([number % 4 for number in known], pa.int32()),
        **more,
    }
    return pa.table(columns).replace_schema_metadata({"huggingface": json.dumps(ABOUT)})


def parquet_of(table: pa.Table, group: int = 10, **options: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=group, **options)
    return file.getvalue()
