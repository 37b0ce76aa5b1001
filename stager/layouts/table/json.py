"""JSON: a line a sample (.jsonl), a list of samples, or COCO's file of pictures and boxes (.json)."""

import json
from collections.abc import Mapping
from typing import Any

from stager.errors import UsageError
from stager.layouts.table.rows import OBJECTS, TableRows, rows_of


def read_jsonl(name: str, data: bytes) -> TableRows:
    rows, where = [], []
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            rows.append(_dict_of(name, f"line {number}", line))
            where.append(f"line {number}")
    return rows_of(rows, where)


def read_json(name: str, data: bytes) -> TableRows:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name} cannot be read as JSON: {error}", hint="is it whole?") from None
    if isinstance(value, dict) and "images" in value:
        return _coco(name, value)
    if isinstance(value, list) and all(isinstance(row, dict) for row in value):
        return rows_of(value, [f"row {number}" for number in range(len(value))])
    raise UsageError(f"{name} is no table", hint="COCO's JSON, or a list of objects, or JSON lines (.jsonl)")


def _dict_of(name: str, where: str, line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise UsageError(f"{name}: {where} is no JSON object", hint='as in {"file_name": "1.jpg"}')
    return value


def _coco(name: str, value: Mapping[str, Any]) -> TableRows:
    """A row a picture; its annotations are its objects, each with the name of its category."""
    try:
        names = {category["id"]: category["name"] for category in value.get("categories", [])}
        pictures = {picture["id"]: {**picture, OBJECTS: list[Any]()} for picture in value["images"]}
        for annotation in value.get("annotations", []):
            plain = {key: told for key, told in annotation.items() if type(told) in (bool, int, float, str)}
            of = plain.pop("image_id")
            category = names[plain.pop("category_id")]
            pictures[of][OBJECTS].append({**plain, "bbox": annotation.get("bbox"), "category": category})
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{name} is no COCO file: {type(error).__name__} {error}",
            hint="images and categories need an id, annotations an image_id and a category_id of these",
        ) from None
    return rows_of(list(pictures.values()), [f"image {number}" for number in pictures])
