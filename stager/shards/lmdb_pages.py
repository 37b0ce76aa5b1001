"""Where LMDB put each value of a finished environment file."""

import struct
from collections.abc import Iterator

# LMDB's data format 1, as of 0.9 (mdb.c: MDB_page, MDB_node, MDB_meta).
_PAGE = struct.Struct("<QHHHH")  # number, pad, flags, lower, upper; in an overflow page the last two: pages
_NODE = struct.Struct("<HHHH")  # size low, size high, flags, key bytes
_META = struct.Struct("<II")  # magic, version: what follows the page header of a meta page
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_BRANCH, _LEAF, _OVERFLOW, _META_PAGE = 1, 2, 4, 8
_BIG = 1  # the node holds the number of the overflow page where its value begins


def find_values(data: memoryview, page_bytes: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield (key, offset, size) of every value, in no order.

    It walks the pages from first to last, which is right for a file from one write transaction: none of
    its pages was freed. A value is always one run of bytes, in its leaf or in pages of its own.
    """
    if _META.unpack_from(data, _PAGE.size) != (_MAGIC, _VERSION):
        raise ValueError("this LMDB library writes a data format we do not know")
    page_at = 0
    while page_at < len(data):
        _, _, flags, lower, upper = _PAGE.unpack_from(data, page_at)
        pages = 1
        if flags & _OVERFLOW:
            pages = lower | upper << 16
        elif flags & _LEAF:
            yield from _find_in_leaf(data, page_at, (lower - _PAGE.size) // 2, page_bytes)
        elif not flags & (_BRANCH | _META_PAGE):
            raise ValueError(f"an LMDB page of unknown kind {flags} at {page_at}")
        page_at += pages * page_bytes


def _find_in_leaf(
    data: memoryview, page_at: int, count: int, page_bytes: int
) -> Iterator[tuple[bytes, int, int]]:
    for pointer in struct.unpack_from(f"<{count}H", data, page_at + _PAGE.size):
        low, high, flags, key_bytes = _NODE.unpack_from(data, page_at + pointer)
        key_at = page_at + pointer + _NODE.size
        value_at = key_at + key_bytes
        if flags & _BIG:
            (page,) = struct.unpack_from("<Q", data, value_at)
            value_at = page * page_bytes + _PAGE.size
        yield data[key_at : key_at + key_bytes].tobytes(), value_at, low | high << 16
