"""How segments are shipped: checked how, read how eagerly, and in which layout, with what that shares with brokers."""

from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import Field

from resnap.scheduler.inspecting.key_files import key_ring, public_key
from resnap.scheduler.io_priority import IoPriority
from resnap.scheduler.settings.kinds import WithOrigins, from_text
from resnap.scheduler.settings.layers import FLAG_ORIGIN, flag_of
from resnap.scheduler.settings.values import parse_size
from resnap.storage.errors import UsageError
from resnap.storage.layouts.aiven.body import CHUNK_BYTES, MAX_CHUNK_BYTES, AivenForm, Compression
from resnap.storage.layouts.aiven.encryption import KeyRing
from resnap.tiering.shipping.delivery import Verification
from resnap.tiering.shipping.uploader import Layout

_OF_AIVEN: Final = ("key_prefix", "chunk_size", "chunk_compression", "encryption_public_key")


class ShippingSettings(WithOrigins):
    """How segments are checked, read and laid out."""

    verify_upload: Verification = Field(
        default="auto", description="How uploads are checked: by what the store was seen to keep, or by reading back."
    )
    layout: Layout = Field(default="flat", description="Where objects lie: Resnap's own, or where brokers read them.")
    io_priority: IoPriority = Field(
        default="low", description="Of reading segments, as ionice knows it, so that a broker goes first."
    )
    key_prefix: str = Field(
        default="", description="In the layout aiven: rsm.config.key.prefix, as it is, below the URL."
    )
    chunk_size: Annotated[int, from_text(parse_size), Field(ge=1, le=MAX_CHUNK_BYTES)] = Field(
        default=CHUNK_BYTES, description="In the layout aiven: what a segment is cut into, and brokers fetch at once."
    )
    chunk_compression: Compression = Field(
        default="none",
        description="In the layout aiven: of chunks; heuristic: of segments whose first batch is not compressed.",
    )
    encryption_public_key: Mapping[str, str] = Field(
        default_factory=dict,
        description="ID=FILE: in the layout aiven, the RSA key in PEM that segments are encrypted for.",
    )
    encryption_private_key: Mapping[str, str] = Field(
        default_factory=dict,
        description="ID=FILE: a private RSA key in PEM that segments of the layout aiven were encrypted for; may be"
        " given several times.",
    )

    def keys(self) -> KeyRing:
        """Return what encrypted segments are read by.

        Raises:
            ConfigurationError: a file cannot be read, or holds no private RSA key.

        """
        return key_ring(self.encryption_private_key)

    def aiven(self) -> AivenForm:
        """Return how segments are written in the layout ``aiven``; in another one what is set for it means nothing.

        Raises:
            UsageError: a flag of it is given, and another layout.
            ConfigurationError: the public key cannot be read, or is none.

        """
        if self.layout == "aiven":
            return AivenForm(
                key_prefix=self.key_prefix,
                chunk_size=self.chunk_size,
                compression=self.chunk_compression,
                encryption_key=public_key(self.encryption_public_key),
            )
        given = [flag_of(name) for name in _OF_AIVEN if self.origin(name).startswith(FLAG_ORIGIN)]
        if given:
            raise UsageError(f"{', '.join(given)}: of the layout aiven alone", hint="give --layout aiven with it")
        return AivenForm()
