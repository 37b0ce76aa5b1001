"""The path of a field, as images/{id:06d}.jpg: which object a row of a table has."""

from collections.abc import Mapping
from string import Formatter

from stager.errors import UsageError
from stager.layouts.table.types import Column


class Template:
    """What a recipe's path says. {name} is the text of a column, {name:06d} its value in this format."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._pieces = [(text, name, form or "") for text, name, form, _ in Formatter().parse(path)]
        self.columns = [name for _, name, _ in self._pieces if name]

    def key(self, columns: Mapping[str, Column], row: int) -> str:
        """The key of a row's object."""
        return "".join(
            text + (self._told(columns[name], row, form) if name else "") for text, name, form in self._pieces
        )

    def _told(self, column: Column, row: int, form: str) -> str:
        if not form or column.values[row] is None:
            return column.texts[row]
        try:
            return format(column.values[row], form)
        except ValueError:
            raise UsageError(
                f"the path {self._path!r} makes no sense: {column.texts[row]!r} cannot be told as {form!r}",
                hint='{id:06d} is for whole numbers; without a format, as in "images/{id}.jpg"',
            ) from None
