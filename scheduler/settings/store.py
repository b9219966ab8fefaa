"""Settings of stores: how to connect, how segments are shipped and laid out, and the keys to decrypt them.

boto3 finds the rest itself.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from resnap.scheduler.settings.declaration import Count, Duration, Setting, SettingGroup, Size, from_text
from resnap.scheduler.settings.values import IoPriority, parse_size
from resnap.storage.errors import ConfigurationError
from resnap.storage.key_file import KeyFile
from resnap.storage.layouts import CHUNK_BYTES, MAX_CHUNK_BYTES, Compression, LayoutName
from resnap.storage.stores.s3_settings import CUSTOMER_KEY_BYTES, AddressingStyle, ChecksumMode, Encryption, decoded_key

_ARCHIVES: Final = frozenset({"GLACIER", "DEEP_ARCHIVE"})
"""Storage classes whose objects cannot be read before they are restored."""


class StoreSettings(SettingGroup):
    """How an S3 store is reached, and what it is asked for."""

    title = "Store"
    at_start = True

    s3_endpoint_url: Annotated[str | None, Setting("Endpoint of the S3-compatible store.", "URL")] = None
    s3_region: Annotated[str | None, Setting("Region of the store.", "NAME")] = None
    s3_profile: Annotated[str | None, Setting("Profile in the shared AWS configuration files.", "NAME")] = None
    s3_addressing_style: Annotated[
        AddressingStyle | None, Setting("Where URLs have the bucket name; most stores other than AWS need path.")
    ] = None
    s3_request_checksum_calculation: Annotated[
        ChecksumMode | None, Setting("when_required sends fewer checksums, for stores that reject them.")
    ] = None
    s3_response_checksum_validation: Annotated[
        ChecksumMode | None, Setting("when_required checks fewer checksums, for stores that send wrong ones.")
    ] = None
    s3_sse: Annotated[Encryption | None, Setting("Server-side encryption to request from the store.")] = None
    s3_sse_kms_key_id: Annotated[str | None, Setting("KMS key for the server-side encryption.", "ID")] = None
    s3_sse_customer_key_file: Annotated[
        Path | None, Setting("File with a 256-bit key for SSE-C, raw or base64.", "FILE")
    ] = None
    s3_storage_class: Annotated[
        str | None, Setting("Storage class of segments and their indexes; it must allow immediate reads.", "CLASS")
    ] = None
    s3_tag: Annotated[
        Mapping[str, str], Setting("Tag for every object that is written; can be given several times.", "KEY=VALUE")
    ] = Field(default_factory=dict)
    s3_expected_bucket_owner: Annotated[str | None, Setting("AWS account that must own the bucket.", "ACCOUNT")] = None
    s3_ca_bundle: Annotated[Path | None, Setting("CA certificates to trust, in PEM.", "FILE")] = None
    s3_max_attempts: Annotated[Count | None, Setting("How often to try each request; 6 times unless given.")] = None
    s3_read_timeout: Annotated[Duration | None, Setting("How long to wait for a response; 60s unless given.")] = None
    encryption_private_key: Annotated[
        Mapping[str, str],
        Setting(
            "Private RSA key (PEM) for segments that a plugin encrypted with key pair ID; can be given several times.",
            "ID=FILE",
        ),
    ] = Field(default_factory=dict)


def customer_key(file: Path | None) -> KeyFile | None:
    """Return the file that holds 256 bits, as they are or in base64; None without one.

    Raises:
        ConfigurationError: it cannot be read, or holds something else.

    """
    if file is None:
        return None
    try:
        key = KeyFile.read(file)
    except OSError as error:
        raise ConfigurationError(f"--s3-sse-customer-key-file {file}: cannot be read: {error.strerror}") from error
    if decoded_key(key.content()) is None:
        raise ConfigurationError(
            f"--s3-sse-customer-key-file {file}: expected a key of {CUSTOMER_KEY_BYTES} bytes, raw or in base64,"
            f" found {len(key.content())} bytes",
            hint="make one with: head -c 32 /dev/urandom > FILE; without it nothing that was shipped can be read",
        )
    return key


def storage_class(name: str | None) -> str | None:
    """Return ``name``, unless what is stored so could not be read when it is needed.

    Raises:
        ConfigurationError: an archive.

    """
    if name in _ARCHIVES:
        raise ConfigurationError(
            f"--s3-storage-class {name}: what lies in an archive cannot be read at once",
            hint="give GLACIER_IR, STANDARD_IA or INTELLIGENT_TIERING, or let a rule of the bucket move old objects",
        )
    return name


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
            for_runs=True,
        ),
    ] = PARALLEL
    bwlimit: Annotated[
        Size | None, Setting("Copy and read back at most this much per second, such as 50MiB.", for_runs=True)
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
        Setting("For the layout aiven: how much brokers fetch with one request.", for_runs=True),
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
        Setting("For the layout aiven: the public RSA key (PEM) to encrypt segments with.", "ID=FILE"),
    ] = Field(default_factory=dict)  # fmt: skip
