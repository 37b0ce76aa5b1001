"""CSV: names in the first line, then a line a sample."""

import csv
import io

from stager.errors import UsageError
from stager.layouts.table.rows import TableRows


def read_csv(name: str, data: bytes) -> TableRows:
    try:
        text = data.decode("utf-8-sig")
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        names = next(reader, [])
        lines = [(reader.line_num, line) for line in reader if line]
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{name} cannot be read as CSV: {error}", hint="it must be CSV in UTF-8") from None
    if len(set(names)) < len(names) or not all(names):
        raise UsageError(
            f"{name}: two columns have one name, or one has none",
            hint="name them in the first line; pandas writes one without, unless index=False",
        )
    for number, line in lines:
        if len(line) != len(names):
            raise UsageError(
                f"{name}: line {number} does not have {len(names)} values", hint="check its commas"
            )
    columns = {column: [line[at] for _, line in lines] for at, column in enumerate(names)}
    return TableRows(columns, [f"line {number}" for number, _ in lines], is_written=True)
