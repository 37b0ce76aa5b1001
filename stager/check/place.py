"""Look at a place, and say which layout and recipe fit, and what is wrong if none does."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Final

from stager.check.bricks import try_bricks
from stager.check.trial import ANYTHING, Trial, try_guess
from stager.errors import SourceError, StagerError
from stager.interfaces import ENDINGS_SHOWN, Scanning
from stager.layouts import LAYOUTS
from stager.mounts import is_there
from stager.reader.record import is_url
from stager.reader.values import ObjectInfo, SourceSpec
from stager.recipes import KINDS
from stager.sources import open_source
from stager.sources.chunks import ChunkSource
from stager.worker.listing import SourceListing

ANSWER_S: Final = 10.0  # in which a mount says anything
OBJECTS_MAX: Final = 20_000  # a place is known by so many
GUESSES_MAX: Final = 6  # of one layout


@dataclass(frozen=True, slots=True)
class Finding:
    """What a place has, how each guess fared, and which one fits best, if one does."""

    source: SourceSpec
    objects: int
    bytes: int
    is_all: bool  # no object was left unseen
    endings: dict[str, int]
    trials: Sequence[Trial]
    fits: Trial | None

    def to_json(self) -> dict[str, Any]:
        """All but the source's keys that nobody asked for."""
        told = {name: getattr(self, name) for name in ("objects", "bytes", "is_all", "endings")}
        tried = [
            {
                **{name: getattr(trial, name) for name in ("layout", "options", "recipe", "found", "good")},
                **{"tried": len(trial.samples), "problem": trial.problem or problem_of(trial)},
            }
            for trial in self.trials
        ]
        best = self.fits and {
            **{
                name: getattr(self.fits, name)
                for name in ("layout", "options", "recipe", "left_out", "about")
            },
            "samples": [asdict(sample) for sample in self.fits.samples],
        }
        return {"source": self.source.url, **told, "fits": best or None, "tried": tried}


def look_at(spec: SourceSpec, tell: Callable[[str], None] = lambda text: None) -> Finding:
    """Try what the layouts guess with all recipes. Raise SourceError if the place cannot be listed."""
    if not is_url(spec.url):
        is_there(spec.url, ANSWER_S)  # a command cannot be ended while it waits for a mount
    listing = SourceListing(ChunkSource(open_source(spec)), Scanning())
    tell("listing")
    found = list(islice(listing.objects(), OBJECTS_MAX + 1))
    infos = found[:OBJECTS_MAX]
    trials: list[Trial] = []
    for name, kind in LAYOUTS.items():
        try:
            for guess in islice(kind.guesses(infos, listing), GUESSES_MAX):
                tell(f"trying the layout {name}")
                is_named = guess.recipe is not None
                trials += [try_bricks(name, guess, listing)] if is_named else try_guess(name, guess, listing)
        except SourceError:
            raise
        except StagerError as error:
            trials.append(Trial(name, {}, {"kind": ""}, (), 0, "", error.message))
    size_bytes = sum(info.size for info in infos)
    return Finding(
        spec, len(infos), size_bytes, len(found) == len(infos), _endings(infos), trials, best_of(trials)
    )


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """The one that fits best: it makes something of the most samples, and more than their bytes."""
    kinds, layouts = list(KINDS), list(LAYOUTS)
    fitting = [trial for trial in trials if trial.fits]
    return max(
        fitting,
        key=lambda trial: (
            bool(trial.about),  # its layout knows what it is
            trial.kind != ANYTHING,
            trial.good,
            -kinds.index(trial.kind),
            layouts.index(trial.layout),
            trial.found,
        ),
        default=None,
    )


def problem_of(trial: Trial) -> str:
    """Why a guess does not fit, or not wholly; nothing, if all is well."""
    if trial.problem:
        return trial.problem
    errors = Counter(sample.error for sample in trial.samples if sample.error)
    if not trial.samples:
        return trial.left_out or "it finds no samples"
    return errors.most_common(1)[0][0] if errors else ""


def _endings(infos: Sequence[ObjectInfo]) -> dict[str, int]:
    """The commonest endings of keys."""
    names = (info.key.rpartition("/")[2] for info in infos)
    counts = Counter(name[name.rfind(".") :].lower() if "." in name else "" for name in names)
    return dict(counts.most_common(ENDINGS_SHOWN))
