from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from resnap.storage.errors import ConfigurationError
from resnap.storage.key_file import KeyFile


def sent(key: KeyFile) -> KeyFile:
    """Give ``key`` as another process gets it."""
    there = pickle.loads(pickle.dumps(key))  # noqa: S301 - our own
    assert isinstance(there, KeyFile)
    return there


def test_a_key_travels_as_the_name_of_its_file_and_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"hunter2")
    key = KeyFile.read(tmp_path / "key")
    assert b"hunter2" not in pickle.dumps(key)
    assert "hunter2" not in repr(key)
    assert (sent(key), hash(sent(key)), sent(key).content()) == (key, hash(key), b"hunter2")


def test_a_relative_name_means_the_same_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_bytes(b"hunter2")
    monkeypatch.chdir(tmp_path)
    key = KeyFile.read(Path("key"))
    monkeypatch.chdir("/")
    assert sent(key).content() == b"hunter2"


def test_a_key_that_is_gone_or_another_is_missed_only_where_it_was_sent(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"hunter2")
    key = KeyFile.read(tmp_path / "key")
    (tmp_path / "key").write_bytes(b"hunter3")
    with pytest.raises(ConfigurationError, match="another key than the one that the run began with"):
        sent(key).content()
    (tmp_path / "key").unlink()
    with pytest.raises(ConfigurationError, match="cannot be read here: No such file") as caught:
        sent(key).content()
    assert "same file at the same path" in str(caught.value.hint)
    assert key.content() == b"hunter2"
