"""Which bytes are asked of a source at once: a pure decision."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from stager.reader.values import ObjectInfo, Part
from stager.worker.reads import GAP_BYTES_MAX, READ_BYTES_MAX, plan_reads

TAR = ObjectInfo("a.tar", 100 << 20, "1")
MEMBER = 100_000


def members(numbers: Sequence[int], info: ObjectInfo = TAR, size: int = MEMBER) -> list[Part]:
    return [Part(info, number * size + 512, (number + 1) * size) for number in numbers]


def test_a_tar_that_is_wanted_whole_is_read_once_in_large_pieces() -> None:
    parts = members(range(1000))
    reads, _ = plan_reads(parts)
    assert sum(read.size for read in reads) <= sum(part.size for part in parts) + 1000 * 512
    assert len(reads) <= 1000 * MEMBER // READ_BYTES_MAX + 2
    assert all(read.size <= READ_BYTES_MAX for read in reads)


def test_when_few_members_are_wanted_each_is_read_by_its_range() -> None:
    parts = members(range(0, 1000, 50))
    reads, _ = plan_reads(parts)
    assert reads == parts


def test_small_members_are_not_worth_a_request_each() -> None:
    parts = members(range(0, 100, 10), size=2000)
    reads, _ = plan_reads(parts)
    assert len(reads) == 1


def test_reads_come_in_the_order_of_need() -> None:
    parts = members([700, 3, 350])
    assert plan_reads(parts)[0] == parts


def test_whole_objects_are_read_as_they_are() -> None:
    parts = [Part(ObjectInfo(name, 9, "v")) for name in "bac"]
    assert plan_reads(parts)[0] == parts


def test_a_part_that_its_object_has_no_bytes_for_is_read_alone() -> None:
    info = ObjectInfo("cut.tar", 5 * MEMBER - 7, "1")
    parts = members(range(5), info)
    reads, spans = plan_reads(parts)
    assert reads[spans[parts[4]].read] == parts[4]
    assert len(reads) == 2


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 20 << 20), st.integers(0, 3 * GAP_BYTES_MAX)),
        min_size=1,
    )
)
def test_each_part_is_found_in_what_is_read(told: list[tuple[str, int, int]]) -> None:
    parts = [Part(ObjectInfo(key, 30 << 20, "v"), start, start + size) for key, start, size in told]
    reads, spans = plan_reads(parts)
    for part in parts:
        read = reads[spans[part].read]
        assert read.info == part.info
        assert read.start + spans[part].start == part.start
        assert spans[part].stop - spans[part].start == part.size
        assert spans[part].stop <= read.size
    assert all(read.size <= max(READ_BYTES_MAX, *(part.size for part in parts)) for read in reads)
