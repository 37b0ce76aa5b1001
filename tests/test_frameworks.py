"""PyTorch reads each sample exactly once an epoch, however it is run. Other frameworks: `make frameworks`."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from frameworks.known import PYTORCH, RUNS, Run
from frameworks.told import RUN_S, numbered_place, tell

pytestmark = pytest.mark.timeout(3 * RUN_S)


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> dict[Run, str]:
    with numbered_place(tmp_path_factory.mktemp("frameworks")) as place:
        return {told.run: told.wrong for told in tell(PYTORCH, place)}


@pytest.mark.parametrize("run", PYTORCH, ids=lambda run: run.function)
def test_each_sample_comes_exactly_once_an_epoch_with_the_pixels_of_its_source(
    run: Run, wrong: dict[Run, str]
) -> None:
    assert wrong[run] == ""


def test_the_page_shows_every_run_with_the_version_that_is_pinned() -> None:
    root = Path(__file__).parent.parent
    page = (root / "docs/FRAMEWORKS.md").read_text().split("\n## What was run\n")[1].split("\n## ")[0]
    shown = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if "|" in line][
        2:
    ]
    pins = dict(line.split("==") for line in (root / "constraints.txt").read_text().split() if "==" in line)
    wanted = [[run.package, pins[run.package], run.what, str(run.ranks)] for run in RUNS]
    assert [
        [name, version.split("+")[0], *rest] for name, version, *rest in (row[:4] for row in shown)
    ] == wanted
