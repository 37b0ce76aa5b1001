"""Results of functions, kept in the cache: computed once for the same code, arguments and files."""

from stager_client.memo.keep import Counts, memo

__all__ = ["Counts", "memo"]
