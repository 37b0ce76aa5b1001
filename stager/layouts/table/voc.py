"""Pascal VOC: an XML file a picture, with its objects and their boxes."""

from collections.abc import Iterable
from typing import Any
from xml.etree import ElementTree

from stager.errors import SampleError
from stager.interfaces import LeftOut
from stager.layouts.table.rows import CORNERS, OBJECTS, TableRows, rows_of


def read_voc(files: Iterable[tuple[str, bytes]], left_out: LeftOut) -> TableRows:
    """A row a file. One that cannot be read is left out, alone."""
    rows, where = [], []
    for name, data in files:
        try:
            rows.append(_row(data))
            where.append(name)
        except SampleError as error:
            left_out.count("damaged", example=f"{name}: {error.message}")
    return rows_of(rows, where)


def _row(data: bytes) -> dict[str, Any]:
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:  # entities can be bombs
        raise SampleError("unknown_format", "it has a DOCTYPE")
    try:
        root = ElementTree.fromstring(data)  # noqa: S314 (there are no entities)
    except (ElementTree.ParseError, LookupError, ValueError) as error:  # the latter: of its encoding
        raise SampleError("corrupt", str(error)) from None
    row: dict[str, Any] = {}
    for element in root:
        if element.tag == "size":
            row |= {side.tag: _number(side.text) for side in element}
        elif element.tag != "object" and not len(element):
            row[element.tag] = _number(element.text)
    row[OBJECTS] = [_thing(element) for element in root.iter("object")]
    return row


def _thing(element: ElementTree.Element) -> dict[str, Any]:
    """An object. VOC counts pixels from 1, and its box has the last one; we count from 0, up to it."""
    thing = {child.tag: _number(child.text) for child in element if not len(child)}
    thing["category"] = thing.pop("name", None)
    for corner in CORNERS:
        value = _number(element.findtext(f"bndbox/{corner}"))
        is_number = isinstance(value, int | float)
        thing[corner] = value - corner.endswith("min") if is_number else None
    return thing


def _number(text: str | None) -> Any:
    """A number, if that is how it is written; else the text, or None."""
    written = (text or "").strip()
    for kind in (int, float):
        try:
            value = kind(written)
        except ValueError:
            continue
        if str(value) == written:
            return value
    return written or None
