"""What a diff says of two versions is what a plain comparison of their samples says."""

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from making import scanned
from stager.reader.samples.changes import KEYS_TOLD, Changes, compare
from stager.reader.samples.manifest import Manifest
from stager.reader.samples.sample_list import SampleList
from stager.reader.values import ObjectInfo
from stager.scan.scan import NOTHING_KNOWN, Known

Content = dict[str, str]  # the versions of keys
CONTENT = st.dictionaries(
    st.builds("{}/{}.jpg".format, st.sampled_from("abc"), st.integers(0, 9)), st.sampled_from(["1", "2", "3"])
)


def scan(path: Path, content: Content, known: Known) -> tuple[Manifest, SampleList]:
    manifest = scanned(path, [ObjectInfo(key, 9, content[key]) for key in sorted(content)], known)
    return manifest, manifest.records


def diff_of(before: Content, after: Content, relist: bool) -> Changes:
    with tempfile.TemporaryDirectory() as directory:
        old, records = scan(Path(directory) / "old", before, NOTHING_KNOWN)
        new, _ = scan(Path(directory) / "new", after, Known(records, old, relist))
        return compare(old, new)


@settings(max_examples=60, deadline=None)
@given(before=CONTENT, after=CONTENT, relist=st.booleans())
def test_a_diff_is_that_of_two_plain_listings(before: Content, after: Content, relist: bool) -> None:
    expected = {
        "added": sorted(after.keys() - before.keys()),
        "changed": sorted(key for key in after.keys() & before.keys() if before[key] != after[key]),
        "removed": sorted(before.keys() - after.keys()),
        "moved": [],
    }
    diff = diff_of(before, after, relist)
    assert {kind: sorted(diff.keys.get(kind, ())) for kind in expected} == expected
    told = diff.to_json()
    assert {kind: told[kind] for kind in expected} == {kind: len(keys) for kind, keys in expected.items()}
    assert told["before"] == len(before)
    assert told["same"] == len(before) - told["removed"] - told["changed"]


def test_a_version_that_comes_back_is_a_change_and_no_new_sample() -> None:
    """Its record is still in the list, so it gets its old number: only by the key is it the same sample."""
    with tempfile.TemporaryDirectory() as directory:
        first, records = scan(Path(directory) / "1", {"a/1.jpg": "1"}, NOTHING_KNOWN)
        second, records = scan(Path(directory) / "2", {"a/1.jpg": "2"}, Known(records, first))
        third, _ = scan(Path(directory) / "3", {"a/1.jpg": "1"}, Known(records, second))
        assert compare(second, third).keys == {"changed": ("a/1.jpg",)}
        assert compare(first, third).same == 1


def test_many_keys_are_counted_and_the_first_are_told() -> None:
    diff = diff_of({}, {f"a/{number:05d}.jpg": "1" for number in range(KEYS_TOLD + 5)}, False)
    assert diff.added == KEYS_TOLD + 5
    assert len(diff.keys["added"]) == KEYS_TOLD


def test_more_than_a_twentieth_gone_is_suspect_and_a_change_is_not() -> None:
    before = {f"a/{number}.jpg": "1" for number in range(100)}
    assert not diff_of(before, {key: before[key] for key in list(before)[5:]}, False).is_suspect
    assert diff_of(before, {key: before[key] for key in list(before)[6:]}, False).is_suspect
    assert not diff_of(before, dict.fromkeys(before, "2"), False).is_suspect
    assert not diff_of({}, {}, False).is_suspect
