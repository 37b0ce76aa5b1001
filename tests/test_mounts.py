"""Which paths lie on a mount that may hang: told without asking any such mount."""

import time
from pathlib import Path

import pytest

from mounts import hung_mount
from stager.errors import SourceSilent
from stager.mounts import Mount, is_there, mounts, remote_mount

TABLE = rb"""22 1 0:20 / / rw,relatime - overlay overlay rw,lowerdir=/a
30 22 8:1 / /data rw,noatime shared:5 - ext4 /dev/sda1 rw
31 30 0:40 / /data/lab rw,relatime shared:6 master:2 - nfs4 server:/lab rw,vers=4.2
32 22 0:41 / /mnt/two\040words rw - fuse.sshfs me@host:/ rw
33 22 0:42 / /over rw - tmpfs tmpfs rw
34 33 0:43 / /over rw - cifs //server/share rw
"""


def test_the_kernels_table_is_read_with_its_escapes_and_optional_fields() -> None:
    assert [(mount.path, mount.kind) for mount in mounts(TABLE)] == [
        (b"/", "overlay"),
        (b"/data", "ext4"),
        (b"/data/lab", "nfs4"),
        (b"/mnt/two words", "fuse.sshfs"),
        (b"/over", "tmpfs"),
        (b"/over", "cifs"),
    ]


@pytest.mark.parametrize(
    ("path", "mount"),
    [
        ("/", ""),
        ("/data/images", ""),
        ("/data/lab", "/data/lab"),
        ("/data/lab/a/b.jpg", "/data/lab"),
        ("/data/laboratory", ""),
        ("/data/lab/../images", "/data/lab"),  # to go back one must have been there
        ("/mnt/two words/x", "/mnt/two words"),
        ("/over/x", "/over"),
    ],
)
def test_a_path_is_on_the_longest_mount_and_of_two_at_one_place_on_the_last(path: str, mount: str) -> None:
    assert remote_mount(path, mounts(TABLE)) == mount


def test_links_are_followed_up_to_the_mount_and_no_further(tmp_path: Path) -> None:
    table = [Mount(b"/", "ext4"), Mount(bytes(tmp_path / "lab"), "nfs")]
    (tmp_path / "data").mkdir()
    (tmp_path / "data/today").symlink_to("../lab/2026")
    (tmp_path / "set").symlink_to(tmp_path / "data/today")
    (tmp_path / "circle").symlink_to("circle")
    assert remote_mount(tmp_path / "set/train", table) == str(tmp_path / "lab")
    assert remote_mount(tmp_path / "data/today", table) == str(tmp_path / "lab")
    assert remote_mount(tmp_path / "data", table) == ""
    assert remote_mount(tmp_path / "circle/x", table) == ""


def test_a_look_at_a_mount_that_hangs_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "table.csv").touch()
    assert is_there(str(tmp_path / "table.csv"))
    assert is_there(str(tmp_path / "*.csv"))
    assert not is_there(str(tmp_path / "other.csv"))
    with hung_mount(tmp_path / "hung") as hung:
        assert remote_mount(hung / "table.csv") == str(hung)
        began = time.monotonic()
        with pytest.raises(SourceSilent, match="no answer for 0 s"):
            is_there(str(hung / "table.csv"), 0.4)
        assert time.monotonic() - began < 30
