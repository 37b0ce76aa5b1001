"""What a newcomer is told at the first mistake: the words, the way out, and the name of what was called."""

import re
import shutil
from pathlib import Path

import pytest

from making import image_folder, jpeg
from running import Place
from sets import table
from sounds import speakers
from stager.errors import NoService, SampleError, UsageError
from stager.sources.s3.errors import our_error

torch = pytest.importorskip("torch")

from stager_client.augment import HorizontalFlip, RandomResizedCrop  # noqa: E402
from stager_client.numpy import StagedArrays  # noqa: E402
from stager_client.torch import StagedDataset, StagedLoader  # noqa: E402


@pytest.fixture(scope="module")
def first_place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place(tmp_path_factory.mktemp("first"))
    image_folder(place.root / "source", 2, 4)
    (place.root / "source/class000/broken.jpg").write_bytes(jpeg(1)[:200])
    place.configure(table("pets", place.root / "source"))
    place.json("prefetch", "pets", code=3)
    return place


@pytest.fixture
def here(first_place: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("STAGER_CONFIG", str(first_place.config))
    return first_place


@pytest.mark.parametrize(
    ("ending", "cure"),
    [
        (".wav", 'for .wav write kind = "audio" in'),
        (".gltf", "the folder layout wants CLASS/NAME.jpg"),
        (".npy", 'for .npy write kind = "array" in'),
    ],
)
def test_a_folder_without_images_is_told_what_lies_there(
    tmp_path: Path, here: Place, ending: str, cure: str
) -> None:
    for number in range(3):
        path = tmp_path / "sounds" / f"class{number}" / f"one{ending}"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"not an image")
    done = here.run("prefetch", str(tmp_path / "sounds"))
    assert done.returncode == 2
    assert f"no images there (left out: 3 files that are no images: 3 {ending})" in done.stderr
    assert f"\n  try: {cure}" in done.stderr


def test_a_folder_of_sounds_becomes_a_data_set_by_the_hint(tmp_path: Path, here: Place) -> None:
    speakers(tmp_path / "sounds", 2, 2, 0.5)
    done = here.run("prefetch", str(tmp_path / "sounds"))
    hint = re.findall(r"(stager check \S+) shows the whole config", done.stderr)
    assert hint == [f"stager check {tmp_path}/sounds"]
    config = here.run("check", str(tmp_path / "sounds")).stdout.split("for stager.toml")[1]
    assert '\nkind = "audio"\n' in config


def test_a_folder_with_nothing_in_it_is_no_folder_without_images(tmp_path: Path, here: Place) -> None:
    (tmp_path / "empty").mkdir()
    done = here.run("prefetch", str(tmp_path / "empty"))
    assert done.stderr.startswith(f"stager: {tmp_path}/empty: nothing is there\n  try: check the path")


def test_what_is_staged_and_has_no_classes_is_said_in_words(tmp_path: Path) -> None:
    place = Place(tmp_path)
    image_folder(tmp_path / "source", 1, 1)
    (tmp_path / "rows.csv").write_text("file\nclass000/000.jpg\n")
    place.configure(table("one", tmp_path / "source", layout="table", table="rows.csv"))
    told = place.run("prefetch", "one").stdout
    assert told.startswith("one: no classes\n")
    assert place.run("prefetch", "one", "--plan").stdout == (
        "nothing to stage: 1 already there, 0 failed, of 1\n"
    )
    assert place.run("verify").stdout == "1 sample in 1 shard read: all good\n"


def test_a_folder_that_is_named_without_a_slash_is_pointed_at(
    tmp_path: Path, here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(here.root / "source", tmp_path / "dogs")
    monkeypatch.chdir(tmp_path)
    done = here.run("prefetch", "dogs")
    assert done.returncode == 2
    assert "no data set 'dogs'" in done.stderr
    assert "try: for the folder here: stager prefetch ./dogs" in done.stderr


@pytest.mark.parametrize("code", ["UnsupportedAlgorithm", "NotImplemented", "501"])
def test_a_server_that_does_not_know_our_request_is_told_with_a_cure(code: str) -> None:
    error = our_error([code], "s3://bucket", "http://odd", reading=False)
    assert error.message == "s3://bucket: the server does not know a request that we make"
    assert "endpoint_url" in error.hint


def test_missing_keys_say_in_whose_environment_they_are_looked_for() -> None:
    error = our_error(["NoCredentialsError"], "s3://bucket", "http://s3", reading=False)
    assert "AWS_SECRET_ACCESS_KEY in the service's environment, or in this shell's if no" in error.hint
    assert "anonymous = true (with a URL: --anonymous)" in error.hint


def test_an_exception_carries_its_hint_in_the_traceback(here: Place) -> None:
    with pytest.raises(NoService, match=r"^pet is not staged, and no service answers") as raised:
        StagedDataset("pet")
    assert "hint: did you mean 'pets'?" in raised.value.__notes__
    with pytest.raises(NoService, match=r"^s3://b/cats is not staged") as raised:
        StagedDataset("s3://b/cats")
    assert "hint: stager prefetch s3://b/cats" in raised.value.__notes__


def test_a_folder_is_to_be_staged_if_it_is_there_and_else_its_path_is_wrong(
    tmp_path: Path, here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cats").mkdir()
    for name, hint in (
        ("./cats", "stager prefetch ./cats"),
        ("./cast", f"check the path: there is no directory {tmp_path}/cast"),
    ):
        with pytest.raises(NoService, match=rf"^{name} is not staged") as raised:
            StagedDataset(name)
        assert f"hint: {hint}" in raised.value.__notes__


def test_a_position_and_a_split_that_are_not_there_are_told_with_what_is(here: Place) -> None:
    with pytest.raises(IndexError, match="9, and there are 8 samples"):
        StagedDataset("pets", skip_failed=True)[9]
    with pytest.raises(UsageError, match="there is no split 'train'") as raised:
        StagedDataset("pets", split="train")
    assert raised.value.hint == "this data set has no splits: leave it out"


def test_a_failed_sample_says_how_to_leave_it_out(here: Place) -> None:
    data = StagedDataset("pets")
    with pytest.raises(SampleError) as raised:
        [data[index] for index in range(len(data))]
    assert "hint: skip_failed=True leaves such samples out" in raised.value.__notes__
    assert len(StagedDataset("pets", skip_failed=True)) == 8


def test_an_option_that_there_is_not_names_the_class_that_was_called(here: Place) -> None:
    data = StagedDataset("pets", skip_failed=True)
    with pytest.raises(TypeError, match=r"^StagedLoader\(\) .* 'shufle'") as raised:
        StagedLoader(data, 2, shufle=True)  # type: ignore[call-arg]
    assert raised.value.__notes__ == ["hint: did you mean 'shuffle'?"]
    with pytest.raises(TypeError, match=r"^StagedArrays\(\) .* 'shufle'"):
        StagedArrays("pets", 2, shufle=True)  # type: ignore[call-arg]


def test_a_loader_takes_a_name_and_reads_all_of_that_data_set(tmp_path: Path, here: Place) -> None:
    shutil.copytree(here.root / "source/class001", tmp_path / "good/class001")
    here.json("prefetch", str(tmp_path / "good"), "--crop", "32")
    (name,) = (row["name"] for row in here.json("ls") if row["name"].startswith("good-"))
    read = list(StagedLoader(name, 3))
    images = torch.cat([images for images, _ in read])
    assert torch.equal(images, torch.stack([image for image, _ in StagedDataset(name)]))


def test_one_augmentation_needs_no_list(here: Place) -> None:
    data = StagedDataset("pets", skip_failed=True)
    alone = StagedLoader(data, 8, seed=3, augment=RandomResizedCrop(32))
    listed = StagedLoader(data, 8, seed=3, augment=[RandomResizedCrop(32)])
    assert torch.equal(next(iter(alone))[0], next(iter(listed))[0])
    assert next(iter(alone))[0].shape == (8, 3, 32, 32)


@pytest.mark.parametrize("wrong", [HorizontalFlip, [torch.nn.Identity()], "flip"])
def test_what_is_no_augmentation_is_refused_with_an_example(here: Place, wrong: object) -> None:
    with pytest.raises(UsageError, match="none of stager_client's augmentations") as raised:
        StagedLoader(StagedDataset("pets", skip_failed=True), 8, augment=wrong)  # type: ignore[arg-type]
    assert "augment=[RandomResizedCrop(224), HorizontalFlip()]" in raised.value.hint
    assert raised.value.message.startswith(
        ("augment has 'flip'", "augment has <class", "augment has Identity")
    )


def test_a_data_set_tells_what_it_is(here: Place) -> None:
    data = StagedDataset("pets", skip_failed=True)
    assert repr(data) == "StagedDataset('pets', 8 samples of 2 classes, image uint8 32x32x3, 8 resident)"
    arrays = StagedArrays("pets", 4, classes=1, skip_failed=True)
    assert repr(arrays).startswith("StagedArrays('pets', 4 samples of 1 class, image uint8 32x32x3, 4 res")
