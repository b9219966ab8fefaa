from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.storage.disk import FileAttributes, FileDigest
from resnap.storage.errors import FormatError
from resnap.storage.log.log_dir_lock import ShutdownMark
from resnap.tiering.installing.undo import (
    FileChange,
    OldFile,
    UndoManifest,
    read_manifest,
    write_manifest,
)
from tests.cases import each

numbers = st.integers(0, 2**63 - 1)
words = st.text(max_size=8)
folders = st.sampled_from(["payments-0", "dash-ed.topic_1-17"])
digests = st.builds(FileDigest, size_bytes=numbers, sha256=words)
dresses = st.builds(
    FileAttributes,
    mode=st.integers(0, 0o7777),
    user_id=numbers,
    group_id=numbers,
    mtime_ns=st.integers(-(2**63), 2**63),
)
old_files = st.builds(OldFile, digest=digests, attributes=dresses)
places = st.builds("{}/{:020d}.snapshot".format, folders, numbers)
changes = st.one_of(
    st.builds(FileChange, place=places, old=old_files, new=st.none() | digests),
    st.builds(FileChange, place=places, old=st.none(), new=digests),
)
manifests = st.builds(
    UndoManifest,
    log_dir=words.map("/{}".format),
    made_at_ms=numbers,
    shutdown=st.builds(ShutdownMark, digest=digests, mtime_ns=numbers),
    folder_times_ns=st.dictionaries(folders, numbers, max_size=2),
    changes=st.lists(changes, max_size=4).map(tuple),
)
SOME = {
    "version": 1,
    "logDir": "/data",
    "madeAtMs": 1,
    "cleanShutdown": {"sizeBytes": 0, "sha256": "aa", "mtimeNs": 2},
    "folders": {"payments-0": 3},
    "changes": [
        {
            "place": "payments-0/00000000000000000010.snapshot",
            "old": {"sizeBytes": 0, "sha256": "", "mode": 420, "userId": 0, "groupId": 0, "mtimeNs": 5},
            "new": {"sizeBytes": 10, "sha256": "bb"},
        }
    ],
}


@given(manifests)
def test_what_is_written_is_read_again(manifest: UndoManifest) -> None:
    assert read_manifest(write_manifest(manifest)) == manifest


def test_one_written_by_hand_is_read() -> None:
    manifest = read_manifest(json.dumps(SOME).encode())
    assert (manifest.log_dir, manifest.folder_times_ns) == ("/data", {"payments-0": 3})
    [change] = manifest.changes
    assert change.new == FileDigest(size_bytes=10, sha256="bb")


def changed(path: tuple[str | int, ...], value: object) -> bytes:
    content: Any = json.loads(json.dumps(SOME))
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return json.dumps(content).encode()


@each(
    ("path", "value"),
    [
        (("logDir",), "data"),
        (("madeAtMs",), True),
        (("folders",), {"../x-0": 1}),
        (("folders",), {"payments-0": 1.0}),
        (("changes", 0, "place"), "payments-0/../00000000000000000010.snapshot"),
        (("changes", 0, "place"), "payments-0/00000000000000000010.log"),
        (("changes", 0, "place"), "payments-0/00000000000000000010.snapshot.tmp"),
        (("changes", 0, "place"), "/etc/00000000000000000010.snapshot"),
        (("changes", 0, "place"), "payments-0.0123456789abcdef0123456789abcdef-delete/00000000000000000010.snapshot"),
        (("changes", 0, "old", "mode"), 0o10000),
        (("changes", 0, "old", "mode"), -1),
        (("changes", 0), {"place": "payments-0/00000000000000000010.snapshot", "old": None, "new": None}),
    ],
)
def test_what_could_lead_anywhere_else_is_refused(path: tuple[str | int, ...], value: object) -> None:
    with pytest.raises(FormatError):
        read_manifest(changed(path, value))
