"""The bodies of requests: what is in them, and how much of it."""

from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator, with_config

from stager.owner.meter import MISS_REASONS
from stager.owner.readers import Version
from stager.reader.samples.predicate import parse
from stager.reader.samples.subset import Subset
from stager.reader.settings import WANT_SAMPLES_MAX, WANT_WAIT_S

SHARDS_MAX: Final = 65_536  # to verify in one request

Number = Annotated[int, Field(ge=0, lt=2**32)]  # of a sample or a shard
Count = Annotated[int, Field(ge=0, le=10**15)]
Packed = str  # little-endian u32 in base64


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


def _readable(subset: Subset) -> Subset:
    if subset.where is not None:
        parse(subset.where)  # before the loop has it
    return subset


with_config(Strict.model_config)(Subset)  # its fields are the body's, and no others
SubsetBody = Annotated[Subset, AfterValidator(_readable)]


class SourceBody(Strict):
    url: str = Field(pattern=r"^(/|[A-Za-z0-9]+://)", description="s3://bucket/prefix, or an absolute path")
    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    anonymous: bool = False


class SpecBody(Strict):
    name: str
    source: SourceBody
    layout: str = "folder"
    recipe: dict[str, Any]
    options: dict[str, Any] = {}


class PrefetchBody(Strict):
    dataset: str | None = Field(None, description="a data set of the service's config; none: its only one")
    spec: SpecBody | None = Field(None, description="a data set that is in no config: own user only")
    subset: SubsetBody = Subset()
    format: str = Field("auto", pattern="^(auto|arrow|lmdb)$")
    stop_after: str = Field("", pattern="^(|scan|plan)$", description="go no further than this")
    retry_failed: bool = Field(False, description="try samples again that had failed for good")
    evict_cold: bool = Field(False, description="what does not fit takes the place of what is needed latest")


class RefreshBody(Strict):
    how: str = Field("take", pattern="^(look|take|take_removals)$", description="only look, or take it")


class HotBody(Strict):
    name: str | None = Field(None, max_length=100, description="only of this data set")


class RemoveBody(Strict):
    force: bool = Field(False, description="end its jobs, and what its readers have open")


class CompareBody(Strict):
    before: str = Field(max_length=100, description="the beginning of a version's digest")
    after: str = Field(max_length=100)


class CancelBody(Strict):
    finish: bool = Field(False, description="it ends once the shards that are under way for it are in")


class VersionBody(Strict):
    """What a reader has open: a recipe, and the list that its sample numbers are of."""

    recipe: str = Field(max_length=100)
    lineage: str = Field(max_length=100)

    def version(self, dataset: str) -> Version:
        return Version(dataset, self.recipe, self.lineage)


class HelloBody(VersionBody):
    session: str = Field(min_length=1, max_length=100)
    manifest: str = Field(max_length=100)


class ByeBody(BaseModel):
    session: str = Field(min_length=1, max_length=100)


class WantBody(VersionBody):
    samples: list[Number] = Field(max_length=WANT_SAMPLES_MAX)
    corrupt: list[Number] = Field([], max_length=WANT_SAMPLES_MAX)
    wait_s: float = Field(WANT_WAIT_S, ge=0, le=60)
    session: str = Field("", max_length=100)
    position: Number | None = Field(None, description="in the order that the session told")


class TotalsBody(Strict):
    requests: Count
    hits: Count
    misses: Count
    wait_s: float = Field(ge=0, le=1e12)
    computed_s: float = Field(0.0, ge=0, le=1e12)
    reasons: dict[str, Count]

    @model_validator(mode="after")
    def add_up(self) -> Self:
        if self.requests != self.hits + self.misses or self.misses != sum(self.reasons.values()):
            raise ValueError("requests are hits and misses, and each miss has a reason")
        if not set(self.reasons) <= set(MISS_REASONS):
            raise ValueError(f"a reason is one of {', '.join(MISS_REASONS)}")
        return self


class ReportBody(VersionBody):
    dataset: str
    session: str = Field(min_length=1, max_length=100)
    process: str = Field(max_length=100)
    length: int = Field(ge=1, lt=2**32)
    epoch: Number | None
    position: Number | None = Field(None, description="in the order that the session told")
    reads: Packed = Field("", description="sample numbers, for a session that told no order")
    totals: TotalsBody


class OrderBody(VersionBody):
    session: str = Field(max_length=100)
    manifest: str = Field(max_length=100)
    subset: SubsetBody
    shuffle: bool
    seed: int
    epoch: Number
    rank: Number
    world_size: Number = Field(ge=1)
    drop_last: bool
    length: Number
    start: Number
    own_orders: list[Packed] = Field(
        [],
        max_length=2,
        description="sample numbers that it reads in this epoch and the next, if no seed gives them",
    )
    cut: dict[str, Any] | None = Field(None, description="what it takes of each sample, if not all of it")


class PositionBody(Strict):
    session: str = Field(max_length=100)
    position: Number


class SampleBody(Strict):
    sample: str = Field(max_length=4096, description="a key of the source, or a number")


class PinBody(Strict):
    subset: SubsetBody = Subset()
    pinned: bool = True


class MemoBody(Strict):
    key: str = Field(pattern="^[0-9a-f]{32}$", description="of a result")


class MemoRoomBody(MemoBody):
    size_bytes: Count


class ShardsBody(Strict):
    shards: list[int] = Field(max_length=SHARDS_MAX)
