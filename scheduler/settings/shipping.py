"""Settings of shipping: how segments are checked and read, and their layout, with what it shares with brokers."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import Field

from resnap.scheduler.settings.declaration import Setting, SettingGroup, Size, from_text
from resnap.scheduler.settings.values import IoPriority, parse_size
from resnap.storage.layouts.segment_form import CHUNK_BYTES, MAX_CHUNK_BYTES, Compression, LayoutName

PARALLEL: Final = 4
"""Segments on their way at once: each holds a part of 16 MiB."""


class ShippingSettings(SettingGroup):
    """How segments are checked, read and laid out."""

    title = "Upload"

    parallel: Annotated[
        Annotated[int, Field(ge=1, le=64)],
        Setting(
            "How many segments to copy at the same time; executors of other machines get as many as they have room for,"
            " unless it is given.",
            "N",
            for_runs=True,
        ),
    ] = PARALLEL
    bwlimit: Annotated[
        Size | None, Setting("Copy and read back at most this much per second, such as 50MiB.", "SIZE", for_runs=True)
    ] = None
    verify_upload: Annotated[
        Literal["auto", "read-back"],
        Setting(
            "auto trusts the store's check if a probe saw it refuse a wrong checksum; read-back reads every object"
            " again.",
            for_runs=True,
        ),
    ] = "auto"
    io_priority: Annotated[IoPriority, Setting("I/O priority for reading segments.", for_runs=True)] = "low"
    layout: Annotated[
        LayoutName,
        Setting(
            "flat is Resnap's own; Aiven's RemoteStorageManager plugin reads aiven, and Kafka's LocalTieredStorage"
            " reads local-tiered.",
            for_runs=True,
        ),
    ] = "flat"
    key_prefix: Annotated[
        str,
        Setting("For the layout aiven: the plugin's key.prefix; keys below the URL begin with it.", "TEXT",
                for_runs=True),
    ] = ""  # fmt: skip
    chunk_size: Annotated[
        Annotated[int, from_text(parse_size), Field(ge=1, le=MAX_CHUNK_BYTES)],
        Setting("For the layout aiven: how much brokers fetch with one request.", "SIZE", for_runs=True),
    ] = CHUNK_BYTES
    chunk_compression: Annotated[
        Compression,
        Setting(
            "For the layout aiven; heuristic compresses a segment only if its first batch is not compressed.",
            for_runs=True,
        ),
    ] = "none"
    encryption_public_key: Annotated[
        Mapping[str, str],
        Setting("For the layout aiven: the public RSA key (PEM) to encrypt segments with.", "ID=FILE",
                beside_file=True),
    ] = Field(default_factory=dict)  # fmt: skip
