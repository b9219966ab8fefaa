"""A segment that is uploaded in one large request: a run that gets SIGTERM in the middle publishes none of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from resnap.storage.layouts.flat.layout import Flat
from resnap.storage.stores.s3 import S3ObjectStore
from resnap.tiering.verifying.verification import StoreReader
from tests.logs.log_writer import PartitionWriter, write_log_dir_files
from tests.stores.servers import ACCESS, MINIO, SECRET, STRICT
from tests.tiering.replicas import META, PARTITION

if TYPE_CHECKING:
    from collections.abc import Callable

    from resnap.storage.stores.protocol import ObjectStore
    from tests.stores.servers import Kind, Server

pytestmark = pytest.mark.stores
MIB: Final = 1 << 20
PROJECT: Final = Path(__file__).parents[2]
PATIENCE_S: Final = 600
IN_THE_MIDDLE_S: Final = 1.5
"""After the lease is taken, which is when the body begins: as it is paced, it takes ten times as long."""


def a_large_segment(log_dir: Path, size_bytes: int) -> Path:
    """Write a log dir with one partition, of one closed segment of about this size; return its ``.log``."""
    with PartitionWriter(log_dir / "payments-0", segment_bytes=2 * size_bytes) as writer:
        for sequence in range(size_bytes // MIB):
            writer.append_data(
                timestamps=1_700_000_000_000, producer_id=7, producer_epoch=0, base_sequence=sequence, payload_bytes=MIB
            )
        end = writer.roll()
        writer.append_data(timestamps=1_700_000_000_000)
    write_log_dir_files(log_dir, meta=META, high_watermarks={PARTITION: end})
    return log_dir / "payments-0" / f"{0:020d}.log"


def tier(log_dir: Path, server: Server, bucket: str, *flags: str) -> subprocess.Popen[str]:
    arguments = (
        "tier", str(log_dir), "--to", f"s3://{bucket}", "--engine", "local", "--as-of", "roll",
        "--s3-endpoint-url", server.url, "--s3-region", "us-east-1", "--s3-addressing-style", "path", *flags,
    )  # fmt: skip
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(log_dir), "PYTHONPATH": str(PROJECT), "RESNAP_STATE_DIR": "none",
        "AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_EC2_METADATA_DISABLED": "true",
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-m", "resnap", *arguments], env=environment, stderr=subprocess.PIPE, text=True
    )


def wait_for_the_lease(store: ObjectStore, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not list(store.list(".resnap/lease/")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("kind", "size_mib"),
    [
        pytest.param(MINIO, 16, id="minio-16"),
        *(pytest.param(kind, 300, id=f"{kind.name}-300", marks=pytest.mark.heavy) for kind in STRICT),
    ],
)
def test_a_signal_in_the_middle_of_a_large_body_publishes_nothing_and_the_next_run_continues(
    server_of: Callable[..., Server], kind: Kind, tmp_path: Path, size_mib: int
) -> None:
    server, log = server_of(kind), a_large_segment(tmp_path / "data", size_mib * MIB)
    bucket = server.new_bucket()
    store = S3ObjectStore(bucket, "", server.settings())
    with tier(tmp_path / "data", server, bucket, "--bwlimit", f"{size_mib * MIB // 16}") as process:
        wait_for_the_lease(store, process)
        time.sleep(IN_THE_MIDDLE_S)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err.splitlines()[-1]) == (143, "interrupted")
    left = [info.key for info in store.list()]
    assert [key for key in left if key.endswith((".manifest", ".log")) or key.startswith(".resnap/")] == []
    with tier(tmp_path / "data", server, bucket) as process:
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    (manifest,) = (info.key for info in store.list() if info.key.endswith(".manifest"))
    found = StoreReader(store=store, listing=Flat().listing(store, bool)).verify(manifest, reads_objects=True)
    assert found.problems == ()
    assert found.size_bytes > log.stat().st_size
