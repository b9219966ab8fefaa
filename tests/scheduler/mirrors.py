"""Log dirs copied into a bucket, as any tool that copies files does it."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from mypy_boto3_s3 import S3Client


def mirror(client: S3Client, bucket: str, root: Path, prefix: str) -> None:
    """Copy every file below ``root`` to the key of its path below ``prefix``; the files get the times of the copies."""
    files = {f"{prefix}/{path.relative_to(root)}": path for path in sorted(root.rglob("*")) if path.is_file()}
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda key: client.put_object(Bucket=bucket, Key=key, Body=files[key].read_bytes()), files))
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}/"):
        for entry in page.get("Contents", []):
            seconds = entry["LastModified"].timestamp()
            os.utime(files[entry["Key"]], (seconds, seconds))
