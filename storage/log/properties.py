"""Java ``.properties`` text, and the small files ``meta.properties`` and ``partition.metadata``.

``server.properties`` and ``meta.properties`` are read as ``java.util.Properties`` reads them: ISO 8859-1, comments with
``#`` or ``!``, ``=`` or ``:`` or white space between key and value, a backslash that escapes or, at the end of a line,
continues it. ``partition.metadata`` only looks similar: it has two lines in a form of its own.

Source: ``java.util.Properties.load``; ``MetaProperties``; ``PartitionMetadataFile``.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.storage.errors import FormatError, add_hint

if TYPE_CHECKING:
    from collections.abc import Iterator

META_PROPERTIES_VERSIONS: Final = ("0", "1")
"""0: ZooKeeper, where only the version is certain to be there; 1: KRaft, where node and cluster are too.

A broker that was migrated from ZooKeeper keeps 0, and adds the directory's id. Seen with 3.9.1.
"""

_WHITE_SPACE = " \t\f"
# Matches every line whole: the key up to a separator that is not escaped, and all the rest.
_ENTRY = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u([0-9a-fA-F]{4})|.)", re.DOTALL)
_CONTROL_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_INTEGER = re.compile(r"[+-]?[0-9]{1,10}")
_UUID = re.compile(r"[A-Za-z0-9_-]{22}(?:==)?")
_ZERO_UUID = bytes(16)
_METADATA_LINE = re.compile(rb"([^\r\n]*?):[ \t\f\v]+([^\r\n]*?)(\r\n|\r|\n|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaProperties:
    """The content of a log dir's ``meta.properties``."""

    version: int
    node_id: int | None
    """``broker.id`` in version 0."""
    cluster_id: str | None
    directory_id: str | None
    """Base64url without padding; from Kafka 3.7 on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMetadata:
    """The content of a partition's ``partition.metadata``."""

    version: int
    topic_id: str
    """Base64url without padding, 22 characters."""


class _Property(NamedTuple):
    """One key with its value; ``position`` is the first byte of the line it begins on."""

    key: str
    value: str
    position: int


def read_properties(text: bytes) -> dict[str, str]:
    """Return the properties in ``text``, in the order of their keys' first occurrence; a key's last value wins.

    Raises:
        FormatError: a backslash and ``u`` without four hex digits, the only error for Java.

    """
    return {entry.key: entry.value for entry in _properties(text)}


@add_hint("brokers do not start with it: copy it from another log dir of the same broker")
def read_meta_properties(text: bytes) -> MetaProperties:
    """Return the content of a ``meta.properties``.

    Raises:
        FormatError: an unknown version, an invalid number or id, or a version 1 without node or cluster.

    """
    found = {entry.key: entry for entry in _properties(text)}
    if found.keys().isdisjoint({"version", "broker.id", "cluster.id"}):
        raise FormatError("meta.properties", position=0, expected="version, broker.id or cluster.id",
                          found="none of them")  # fmt: skip
    version = found.get("version", _Property("version", "0", 0))
    if version.value not in META_PROPERTIES_VERSIONS:
        raise FormatError("meta.properties version", position=version.position,
                          expected=" or ".join(META_PROPERTIES_VERSIONS), found=repr(version.value))  # fmt: skip
    required = ("node.id", "cluster.id") if version.value == "1" else ()
    for key in required:
        if key not in found:
            raise FormatError("meta.properties", position=len(text), expected=f"{key} before the end", found="none")
    node, directory = found.get("node.id" if required else "broker.id"), found.get("directory.id")
    return MetaProperties(
        version=int(version.value),
        node_id=_int32(node) if node else None,
        cluster_id=found["cluster.id"].value if "cluster.id" in found else None,
        directory_id=_uuid(directory) if directory else None,
    )


def read_partition_metadata(text: bytes) -> PartitionMetadata:
    """Return the content of a ``partition.metadata``; like Kafka, accept any version from 0 on and any extra lines.

    Raises:
        FormatError: another form, a negative version, or no topic id.

    """
    version, end = _metadata_line(text, 0)
    number = _int32(version)
    if number < 0:
        raise FormatError("partition.metadata version", position=0, expected="at least 0", found=number)
    topic, _ = _metadata_line(text, end)
    topic_id = _uuid(topic)
    if _uuid_bytes(topic_id) == _ZERO_UUID:
        raise FormatError("partition.metadata topic id", position=topic.position, expected="one that is not zero",
                          found=topic_id)  # fmt: skip
    return PartitionMetadata(version=number, topic_id=topic_id)


def is_topic_id(text: str) -> bool:
    """Whether ``text`` is the id of a topic in its canonical form."""
    try:
        found = read_partition_metadata(f"version: 0\ntopic_id: {text}".encode())
    except FormatError:
        return False
    return found.topic_id == text


def write_partition_metadata(metadata: PartitionMetadata) -> bytes:
    """Return the bytes of a ``partition.metadata``; like Kafka's, without a newline at the end."""
    return f"version: {metadata.version}\ntopic_id: {metadata.topic_id}".encode()


def _properties(text: bytes) -> Iterator[_Property]:
    for position, line in _logical_lines(text):
        key, value = _ENTRY.findall(line)[0]
        yield _Property(_unescape(key, position), _unescape(value, position), position)


def _logical_lines(text: bytes) -> Iterator[tuple[int, str]]:
    """Yield lines with continuations joined, without blank lines and comments, each with its position."""
    position, began, logical, continued = 0, 0, "", False
    # Bytes, unlike str, are cut where Java cuts: at \n, \r and \r\n only.
    for line in text.splitlines(keepends=True):
        began = began if continued else position
        position += len(line)
        natural = line.decode("latin-1").rstrip("\r\n").lstrip(_WHITE_SPACE)
        if not logical and natural[:1] in {"#", "!"}:
            continued = False
            continue
        # In a run of backslashes every second one is data; if the last has no partner, the line continues.
        continued = (len(natural) - len(natural.rstrip("\\"))) % 2 == 1
        logical += natural[:-1] if continued else natural
        if logical and not continued:
            yield began, logical
            logical = ""
    # If a lone backslash ends the file, Java has an empty key or none, depending on the line end: here none.
    if logical:
        yield began, logical


def _unescape(text: str, position: int) -> str:
    if "\\" not in text:
        return text

    def one(match: re.Match[str]) -> str:
        if match[2]:
            return chr(int(match[2], 16))
        if match[1] == "u":
            raise FormatError("property escape", position=position, expected="\\u and four hex digits",
                              found=ascii(text[match.start() : match.start() + 6]))  # fmt: skip
        return _CONTROL_ESCAPES.get(match[1], match[1])

    # Java's characters are UTF-16 units: two escapes in a row can be the halves of one character.
    return _ESCAPE.sub(one, text).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _metadata_line(text: bytes, position: int) -> tuple[_Property, int]:
    """Return the ``name: value`` line at ``position``, and where the next begins."""
    match = _METADATA_LINE.match(text, position)
    if match is None:
        raise FormatError("partition.metadata line", position=position, expected="'name: value'",
                          found=ascii(text[position : position + 80].decode(errors="backslashreplace")))  # fmt: skip
    return _Property(match[1].decode("latin-1"), match[2].decode("latin-1"), position), match.end()


def _int32(entry: _Property) -> int:
    number = int(entry.value) if _INTEGER.fullmatch(entry.value) else None
    if number is None or not -(1 << 31) <= number < 1 << 31:
        raise FormatError(f"{entry.key}", position=entry.position, expected="an integer of 32 bits",
                          found=ascii(entry.value))  # fmt: skip
    return number


def _uuid(entry: _Property) -> str:
    """Return the id in its one canonical form: Java ignores padding, and bits beyond the sixteenth byte."""
    if not _UUID.fullmatch(entry.value):
        raise FormatError(f"{entry.key}", position=entry.position, expected="22 characters of base64url",
                          found=ascii(entry.value))  # fmt: skip
    return base64.urlsafe_b64encode(_uuid_bytes(entry.value)).decode().rstrip("=")


def _uuid_bytes(text: str) -> bytes:
    return binascii.a2b_base64(text.rstrip("=").replace("-", "+").replace("_", "/") + "==")
