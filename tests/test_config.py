"""stager.toml: every key has a default, and what is not understood is said."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stager.config import load_config
from stager.errors import ConfigError, UsageError
from stager.reader.amount import Amount, parse_amount
from stager.reader.settings import find_config


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "stager.toml"
    path.write_text(text)
    return path


def test_an_empty_config_has_all_defaults(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, ""))
    assert config.capacity == Amount(fraction=0.6)
    assert config.reserve == Amount(bytes=10 * 10**9)
    assert config.format == "auto"
    assert config.datasets == {}


def test_a_data_set_of_the_config_has_source_layout_and_recipe(tmp_path: Path) -> None:
    text = """
    [cache]
    dir = "~/somewhere"
    capacity = "200GB"
    [datasets.imagenet]
    source = "s3://bucket/train"
    endpoint_url = "http://127.0.0.1:1"
    anonymous = true
    [datasets.imagenet.recipe]
    resize = 64
    crop = 48
    """
    config = load_config(write(tmp_path, text))
    spec = config.dataset(None)
    assert spec.name == "imagenet"
    assert spec.source.url == "s3://bucket/train"
    assert spec.source.anonymous
    assert (spec.recipe["resize"], spec.recipe["crop"]) == (64, 48)
    assert config.cache_dir == Path("~/somewhere").expanduser()
    assert config.capacity == Amount(bytes=200 * 10**9)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[cahce]\n", "unknown key cahce"),
        ("[cache]\ncapcity = '1GB'\n", "unknown key cache.capcity"),
        ("[datasets.a]\nsource = '/x'\nlayuot = 'folder'\n", "unknown key datasets.a.layuot"),
        ("[datasets.a]\nlayout = 'folder'\n", "datasets.a has no source"),
        ("[datasets.a]\nsource = '/x'\nlayout = 'zip'\n", "datasets.a.layout is 'zip'"),
        ("[datasets.a]\nsource = '/x'\n[datasets.a.recipe]\nresise = 3\n", "resise"),
        ("[datasets.a]\nsource = 3\n", "datasets.a.source must be a text"),
        ("[datasets.'a/b']\nsource = '/x'\n", "cannot be the name of a data set"),
        ("[cache]\ncapacity = 'much'\n", "'much' is not an amount"),
        ("[cache]\ncapacity = '120%'\n", "more than the disk"),
        ("[cache]\nformat = 'parquet'\n", "cache.format is 'parquet'"),
        ("[datasets.a]\nsource = '/x'\nevents = 'sqs://q'\n", "only a bucket has events"),
        ("[datasets.a]\nsource = 's3://b'\nevents = 3\n", "datasets.a.events must be a text"),
        ("[datasets.a]\nsource = 's3://b'\nevents = 'q'\n", "datasets.a.events: 'q' is no queue"),
        (
            "[datasets.a]\nsource = 's3://b/a'\nevents = 'sqs://q'\n"
            "[datasets.b]\nsource = 's3://b/b'\nevents = 'sqs://q'\n",
            "datasets.b.events is the queue of datasets.a, too",
        ),
        ("cache = 3\n", "cache must be a table"),
        ("[cache\n", "stager.toml"),
    ],
)
def test_what_is_not_understood_names_the_file_the_key_and_a_way_out(
    tmp_path: Path, text: str, says: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(path) in caught.value.message
    assert says in caught.value.message
    assert caught.value.hint
    assert caught.value.exit_code == 2


def test_a_misspelt_key_is_answered_with_the_nearest_known_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, "[cache]\ncapcity = '1GB'\n"))
    assert caught.value.hint == "did you mean 'capacity'?"


def test_a_named_config_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_config(tmp_path / "none.toml")


def test_the_environment_names_a_config_before_the_working_directory_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, "")
    other = tmp_path / "other.toml"
    other.write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STAGER_CONFIG", raising=False)
    assert find_config() == Path(path.name)
    monkeypatch.setenv("STAGER_CONFIG", str(other))
    assert find_config() == other


def test_relative_paths_of_a_config_start_at_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "elsewhere").mkdir()
    text = "[cache]\ndir = 'cache'\n[service]\nsocket = '../s'\n[datasets.pets]\nsource = 'data/pets'\n"
    write(tmp_path / "project", text)
    monkeypatch.chdir(tmp_path / "elsewhere")
    for path in (tmp_path / "project/stager.toml", Path("../project/stager.toml")):
        config = load_config(path)
        found = [config.cache_dir, config.socket, Path(config.datasets["pets"].source.url)]
        wanted = [tmp_path / "project/cache", tmp_path / "s", tmp_path / "project/data/pets"]
        assert [place.resolve() for place in found] == wanted
        assert all(place.is_absolute() for place in found)


def test_without_a_name_the_only_data_set_is_meant_and_several_are_asked_about(tmp_path: Path) -> None:
    two = "[datasets.a]\nsource = '/x'\n[datasets.b]\nsource = '/y'\n"
    with pytest.raises(UsageError, match="which one"):
        load_config(write(tmp_path, two)).dataset(None)
    with pytest.raises(UsageError, match="no data set was named"):
        load_config(write(tmp_path, "")).dataset(None)
    with pytest.raises(UsageError) as caught:
        load_config(write(tmp_path, two.replace("datasets.a", "datasets.imagenet"))).dataset("imagnet")
    assert "imagenet" in caught.value.hint


def test_a_url_makes_a_data_set_of_its_own_and_a_name_does_not(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, ""))
    spec = config.dataset_of_url("s3://bucket/a/train/", {"resize": 32, "crop": 32}, {"region": "x"})
    assert spec is not None
    assert spec.name.startswith("train-")
    assert (spec.source.url, spec.source.region) == ("s3://bucket/a/train/", "x")
    same = config.dataset_of_url("s3://bucket/a/train", {"resize": 32, "crop": 32}, {})
    assert same is not None
    assert same.name == spec.name
    assert config.dataset_of_url("imagenet", {}, {}) is None
    with pytest.raises(UsageError, match="--resize goes with a URL"):
        config.dataset_of_url("imagenet", {"resize": 3}, {})


def test_a_url_has_a_name_for_each_recipe_and_that_of_the_default_is_the_shortest(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, ""))

    def name(**recipe: object) -> str:
        spec = config.dataset_of_url("s3://bucket/a/train", recipe, {})
        assert spec is not None
        return spec.name

    assert name() == name(resize=256, crop=224) == name(max_pixels=9) == "train-982bae"
    others = {name(crop=64), name(encode="jpeg"), name(encode="jpeg", quality=80)}
    assert len(others) == 3
    assert all(re.fullmatch("train-982bae-[0-9a-f]{6}", other) for other in others)


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("200GB", Amount(bytes=200 * 10**9)),
        ("1.5 TiB", Amount(bytes=3 * 2**39)),
        ("60%", Amount(fraction=0.6)),
        (1000, Amount(bytes=1000)),
        ("7kb", Amount(bytes=7000)),
    ],
)
def test_amounts_are_bytes_or_a_part_of_the_disk(text: object, amount: Amount) -> None:
    assert parse_amount(text) == amount


@given(st.one_of(st.text(), st.booleans(), st.floats(), st.none()))
def test_whatever_stands_for_an_amount_is_read_or_refused(text: object) -> None:
    try:
        amount = parse_amount(text)
    except UsageError:
        return
    assert amount.bytes >= 0
    assert 0 <= amount.fraction <= 1
