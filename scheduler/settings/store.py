"""How a store is reached, and how much is asked of it at once; boto3 finds the rest by itself."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, Field

from resnap.scheduler.settings.kinds import MaybeDuration, Size
from resnap.scheduler.settings.s3_values import customer_key, storage_class
from resnap.storage.stores.s3_settings import AddressingStyle, ChecksumMode, Encryption, S3Settings

PARALLEL: Final = 4
"""Segments on their way at once: each holds a part of 16 MiB."""


class StoreSettings(BaseModel):
    """What is asked of a store, and how an S3 store is reached."""

    parallel: Annotated[int, Field(ge=1, le=64)] = Field(
        default=PARALLEL,
        description="Segments of a partition, and parts of them, that are on their way to the store at once.",
    )
    bwlimit: Size | None = Field(default=None, description="Bytes per second that are sent, and read back, at most.")

    s3_endpoint_url: str | None = Field(default=None, description="Endpoint of the S3-compatible store.")
    s3_region: str | None = Field(default=None, description="Region of the store.")
    s3_profile: str | None = Field(default=None, description="Section of the shared AWS configuration to use.")
    s3_addressing_style: AddressingStyle | None = Field(
        default=None, description="Where the bucket goes: path is what most stores other than AWS want."
    )
    s3_request_checksum_calculation: ChecksumMode | None = Field(
        default=None, description="when_required, for stores that choke on checksums."
    )
    s3_response_checksum_validation: ChecksumMode | None = Field(
        default=None, description="when_required, for stores that send wrong checksums."
    )
    s3_sse: Encryption | None = Field(
        default=None, description="Encryption by the store: AES256, aws:kms, aws:kms:dsse."
    )
    s3_sse_kms_key_id: str | None = Field(default=None, description="Key of the store's key management to use.")
    s3_sse_customer_key_file: Path | None = Field(
        default=None,
        description="File with a key of 256 bits, raw or base64, that the store is to encrypt with (SSE-C).",
    )
    s3_storage_class: str | None = Field(
        default=None, description="Storage class of what segments consist of; one that can be read at once."
    )
    s3_tag: Mapping[str, str] = Field(
        default_factory=dict, description="A tag on every object that is written; may be given several times."
    )
    s3_expected_bucket_owner: str | None = Field(default=None, description="Account that the bucket must belong to.")
    s3_ca_bundle: Path | None = Field(default=None, description="File of certificates to trust, in PEM.")
    s3_max_attempts: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Attempts at each request, the first included."
    )
    s3_read_timeout: MaybeDuration = Field(default=None, description="How long an answer may take; 60s unless given.")

    def s3(self) -> S3Settings:
        """Return what overrides boto3's own configuration."""
        return S3Settings(
            endpoint_url=self.s3_endpoint_url,
            region=self.s3_region,
            profile=self.s3_profile,
            addressing_style=self.s3_addressing_style,
            request_checksum_calculation=self.s3_request_checksum_calculation,
            response_checksum_validation=self.s3_response_checksum_validation,
            encryption=self.s3_sse,
            kms_key_id=self.s3_sse_kms_key_id,
            customer_key=customer_key(self.s3_sse_customer_key_file),
            storage_class=storage_class(self.s3_storage_class),
            tags=tuple(self.s3_tag.items()),
            expected_bucket_owner=self.s3_expected_bucket_owner,
            ca_bundle=None if self.s3_ca_bundle is None else str(self.s3_ca_bundle),
            max_attempts=self.s3_max_attempts,
            parts_in_flight=self.parallel,
            read_timeout_s=None if self.s3_read_timeout is None else self.s3_read_timeout.total_seconds(),
        )
