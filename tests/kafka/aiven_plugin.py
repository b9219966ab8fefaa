"""Aiven's RemoteStorageManager, built from its sources: what brokers load, and what makes them tier by it.

``AIVEN_SOURCES`` names a checkout of github.com/Aiven-Open/tiered-storage-for-apache-kafka at v1.0.0, since no registry
has the plugin. What it needs besides comes by Maven. No version of it (up to 1.1.1) runs on brokers from 4.3 on, which
have moved classes that it uses: for them it is compiled with other imports.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.kafka.brokers import tiering
from tests.kafka.releases import brought

if TYPE_CHECKING:
    from tests.kafka.releases import Release

PREFIX: Final = "tiered/"
KEY_ID: Final = "key1"
_PARTS: Final = ("commons", "core", "storage/core", "storage/filesystem")
_NOT_ITS_OWN: Final = ("slf4j-", "reload4j-")
"""Jars that brokers have: a second copy beside the plugin would log elsewhere."""


def plugin(release: Release, into: Path) -> str:
    """Compile the plugin against a release into the folder ``into``; return the class path that brokers load."""
    root = os.environ.get("AIVEN_SOURCES")
    if root is None:
        pytest.skip("NOT TESTED: AIVEN_SOURCES names no checkout of Aiven's plugin, v1.0.0")
    jars = [jar for jar in brought("aiven", "bcprov-*.jar").glob("*.jar") if not jar.name.startswith(_NOT_ITS_OWN)]
    sources = [
        release.adapted(path, into.parent / "sources" / path.relative_to(root))
        for part in _PARTS
        for path in (Path(root) / part / "src/main/java").rglob("*.java")
    ]
    class_path = ":".join([*map(str, jars), f"{release.jars}/*"])  # of what both have, the plugin loads its own
    subprocess.run(
        ["javac", "-nowarn", "-proc:none", "-d", into, "-cp", class_path, *sources], check=True, capture_output=True
    )
    return ":".join([f"{into}/", *map(str, jars)])


def aiven_tiering(remote: Path, class_path: str, keys: Path | None = None) -> dict[str, object]:
    """Return the properties of a broker that tiers to the folder ``remote``, compressed, and encrypted by ``keys``."""
    encryption = {
        "encryption.enabled": "true",
        "encryption.key.pair.id": KEY_ID,
        "encryption.key.pairs": KEY_ID,
        f"encryption.key.pairs.{KEY_ID}.public.key.file": keys / "public.pem",
        f"encryption.key.pairs.{KEY_ID}.private.key.file": keys / "private.pem",
    } if keys else {}  # fmt: skip
    own = encryption | {
        "chunk.size": 4096,
        "key.prefix": PREFIX,
        "compression.enabled": "true",
        "storage.backend.class": "io.aiven.kafka.tieredstorage.storage.filesystem.FileSystemStorage",
        "storage.root": remote,
    }
    return tiering(remote) | {f"rsm.config.{name}": value for name, value in own.items()} | {
        "remote.log.storage.manager.class.name": "io.aiven.kafka.tieredstorage.RemoteStorageManager",
        "remote.log.storage.manager.class.path": class_path,
    }  # fmt: skip
