from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

import pytest

from resnap.storage.disk import (
    Disk,
    FileAttributes,
    FileDigest,
    attributes_of,
    digest_of_file,
    make_directories,
    read_chunks,
    remove_file,
    temporary_of,
    write_file,
)
from resnap.storage.errors import FileGoneError, LogDirError

if TYPE_CHECKING:
    from pathlib import Path

ABC = FileDigest(size_bytes=3, sha256="ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
STEPS = ("create", "write", "set_attributes", "sync", "rename", "sync_directory")


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


class FailingDisk(Disk):
    """A disk on which one step fails."""

    def __init__(self, step: str, number: int) -> None:
        def fail(*_: object) -> None:
            raise OSError(number, os.strerror(number))

        setattr(self, step, fail)


class SlowDisk(Disk):
    """A disk that takes a byte at a time."""

    def write(self, descriptor: int, data: memoryview) -> int:
        return super().write(descriptor, data[:1])


def ours(mode: int = 0o640, mtime_ns: int | None = None) -> FileAttributes:
    return FileAttributes(mode=mode, user_id=os.getuid(), group_id=os.getgid(), mtime_ns=mtime_ns)


def test_a_file_has_the_bytes_the_mode_and_the_time_it_is_given(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert write_file(Disk(), path, [b"a", b"", b"bc"], ours(0o604, 12_345)) == ABC
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode), path.stat().st_mtime_ns) == (b"abc", 0o604, 12_345)
    assert names(tmp_path) == ["file"]


def test_what_a_file_is_can_be_read_and_given_to_another(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(b"abc")
    one.chmod(0o610)
    os.utime(one, ns=(5, 7))
    assert write_file(Disk(), other, read_chunks(one), attributes_of(one)) == digest_of_file(one) == ABC
    assert attributes_of(other) == attributes_of(one) == ours(0o610, 7)


def test_a_disk_that_takes_little_at_a_time_gets_all(tmp_path: Path) -> None:
    assert write_file(SlowDisk(), tmp_path / "file", [b"ab", b"c"]) == ABC
    assert digest_of_file(tmp_path / "file") == ABC


def test_a_leftover_of_a_killed_run_is_written_over_whole(tmp_path: Path) -> None:
    temporary_of(tmp_path / "file").write_bytes(b"much longer than what comes")
    write_file(Disk(), tmp_path / "file", [b"abc"])
    assert (tmp_path / "file").read_bytes() == b"abc"


def test_a_link_in_place_of_the_leftover_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    temporary_of(tmp_path / "file").symlink_to(victim)
    with pytest.raises(LogDirError):
        write_file(Disk(), tmp_path / "file", [b"abc"])
    assert victim.read_bytes() == b"precious"


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM])
def test_a_step_that_fails_leaves_the_old_file_or_the_new_one_and_says_what_to_do(
    tmp_path: Path, step: str, number: int
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(LogDirError) as caught:
        write_file(FailingDisk(step, number), path, [b"new"], ours())
    assert str(caught.value) == f"{path}: cannot be written: {os.strerror(number)}"
    assert caught.value.hint is not None
    assert caught.value.hint.endswith("and run the same command again")
    assert path.read_bytes() == (b"new" if step == "sync_directory" else b"old")
    assert names(tmp_path) == ["file"]


def test_a_file_in_the_way_of_a_directory_is_not_laid_to_the_disk(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(LogDirError) as caught:
            make_directories(Disk(), path)
        assert caught.value.hint is not None
        assert "no file has the name" in caught.value.hint


def test_an_error_of_the_source_passes_through_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileGoneError):
        write_file(Disk(), tmp_path / "file", read_chunks(tmp_path / "nothing"))
    assert names(tmp_path) == []


def test_removing_what_cannot_be_removed_says_so(tmp_path: Path) -> None:
    with pytest.raises(LogDirError, match="cannot be written"):
        remove_file(Disk(), tmp_path / "nothing")
    (tmp_path / "file").touch()
    remove_file(Disk(), tmp_path / "file")
    assert names(tmp_path) == []


def test_directories_are_made_down_from_the_first_that_is_there(tmp_path: Path) -> None:
    make_directories(Disk(), tmp_path / "a" / "b" / "c")
    make_directories(Disk(), tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(LogDirError):
        make_directories(Disk(), tmp_path / "file" / "below")


def test_a_file_that_is_not_there_has_no_digest(tmp_path: Path) -> None:
    assert digest_of_file(tmp_path / "nothing") is None
