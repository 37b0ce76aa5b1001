"""The key `path` of a recipe's table: which object of a table's row a field is made of."""

from collections.abc import Sequence
from string import Formatter

from stager.errors import UsageError, nearest
from stager.interfaces import Needs

FILE_COLUMNS = ("file_name", "file", "path")  # what people call it


def needs_of(path: str, columns: Sequence[str], field: str = "") -> Needs:
    """What a field with this path needs of a table; without one, the first of these columns that it has.

    For a field X that is X_file_name, as Hugging Face calls it, then FILE_COLUMNS.
    """
    if not path:
        names = (f"{field}_file_name", *FILE_COLUMNS) if field else FILE_COLUMNS
        name = next((name for name in names if name in columns), "")
        if not name:
            raise UsageError(
                "nothing says which column of the table names the objects",
                hint=f'add path = "{{COLUMN}}" to the recipe; columns: {", ".join(columns)}',
            )
        path = f"{{{name}}}"
    for name in names_in(path):
        if name not in columns:
            raise UsageError(f"the path {path!r} names no column of the table", hint=nearest(name, columns))
    return Needs((path,))


def check_path(path: object) -> str:
    """A path as a recipe's table has it. Raise UsageError if it makes no sense."""
    if not isinstance(path, str):
        raise UsageError(f"recipe path is {path!r}", hint='use a text, as "images/{file}"')
    names_in(path)
    return path


def names_in(path: str) -> list[str]:
    """The columns that a path names: images/{file} has `file`."""
    try:
        return [name for _, name, _, _ in Formatter().parse(path) if name is not None]
    except ValueError as error:
        raise UsageError(f"the path {path!r} makes no sense: {error}", hint='as in "images/{file}"') from None
