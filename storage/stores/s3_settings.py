"""Connection settings of an S3-compatible store; apart from ``s3.py``, because importing boto3 takes a second."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from urllib.parse import urlencode

if TYPE_CHECKING:
    from resnap.storage.key_file import KeyFile

AddressingStyle: TypeAlias = Literal["auto", "path", "virtual"]
ChecksumMode: TypeAlias = Literal["when_supported", "when_required"]
Encryption: TypeAlias = Literal["AES256", "aws:kms", "aws:kms:dsse"]
CUSTOMER_KEY_BYTES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Settings:
    """Overrides of boto3's own configuration; None keeps boto3's choice.

    ``AWS_*`` variables (also ``AWS_ENDPOINT_URL_S3``), the shared configuration and credentials files, and the roles of
    instances and containers work as in every program that uses boto3. A plain value, so that it can be sent to
    executors.
    """

    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    """A section of the shared configuration."""
    access_key_id: str | None = None
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    addressing_style: AddressingStyle | None = None
    """``path`` puts the bucket into the path, which most stores other than AWS need."""
    request_checksum_calculation: ChecksumMode | None = None
    """``when_required`` sends no checksum of ours, for stores that choke on them."""
    response_checksum_validation: ChecksumMode | None = None
    """``when_required`` believes no checksum of the store, for stores that send wrong ones with ranges."""
    parts_in_flight: int = 1
    """Objects, or parts of large ones, that are on their way to the store at once; each is held in memory."""
    max_attempts: int | None = None
    """Attempts at one request, the first included (``storage.stores.s3_client``); botocore makes a single one."""
    connect_timeout_s: float | None = None
    read_timeout_s: float | None = None
    encryption: Encryption | None = None
    """The encryption by keys of the store's own or of its key management (SSE-S3, SSE-KMS)."""
    kms_key_id: str | None = None
    customer_key: KeyFile | None = None
    """256 bits that every request carries and the store forgets (SSE-C), as ``decoded_key`` reads them."""
    storage_class: str | None = None
    """The class of what segments consist of; manifests and leases are small, and read often."""
    tags: tuple[tuple[str, str], ...] = ()
    """On every object that is written."""
    expected_bucket_owner: str | None = None
    """The account that the bucket must belong to."""
    ca_bundle: str | None = None
    """A file of certificates to trust."""

    def session_options(self) -> dict[str, Any]:
        """Return the arguments of ``boto3.session.Session``."""
        return {"profile_name": self.profile, "region_name": self.region}

    def client_options(self) -> dict[str, Any]:
        """Return the arguments of ``Session.client``, which unlike ``Session`` refuses half a key."""
        return {
            "endpoint_url": self.endpoint_url,
            "aws_access_key_id": self.access_key_id,
            "aws_secret_access_key": self.secret_access_key,
            "aws_session_token": self.session_token,
            "verify": self.ca_bundle,
        }

    def request_parameters(self) -> dict[str, Any]:
        """Return the parameters for each request that supports them, under S3's own names."""
        key = None if self.customer_key is None else decoded_key(self.customer_key.content())
        customer = {
            f"{whose}SSECustomer{what}": value
            for whose in ("", "CopySource")
            for what, value in (("Algorithm", "AES256"), ("Key", key))
        }
        parameters = {
            "ServerSideEncryption": self.encryption,
            "SSEKMSKeyId": self.kms_key_id,
            **(customer if key is not None else {}),
            "Tagging": urlencode(self.tags) or None,
            "TaggingDirective": "REPLACE" if self.tags else None,
            "ExpectedBucketOwner": self.expected_bucket_owner,
            "ExpectedSourceBucketOwner": self.expected_bucket_owner,
        }
        return {name: value for name, value in parameters.items() if value is not None}

    def config_options(self) -> dict[str, Any]:
        """Return the arguments of ``botocore.config.Config``, without those that would override boto3's choice."""
        options = {
            "s3": {"addressing_style": self.addressing_style} if self.addressing_style else None,
            "retries": {"mode": "standard", "total_max_attempts": 1},
            "request_checksum_calculation": self.request_checksum_calculation,
            "response_checksum_validation": self.response_checksum_validation,
            "connect_timeout": self.connect_timeout_s,
            "read_timeout": self.read_timeout_s,
            "parameter_validation": False,  # of the types alone, a tenth of the time that a request takes
        }
        return {name: value for name, value in options.items() if value is not None}


def decoded_key(held: bytes) -> bytes | None:
    """Return the key in a file for SSE-C, raw or in base64; None if it holds something else."""
    if len(held) == CUSTOMER_KEY_BYTES:
        return held
    try:
        key = base64.b64decode(held.strip(), validate=True)
    except binascii.Error:
        return None
    return key if len(key) == CUSTOMER_KEY_BYTES else None
