"""Which partition of ``__remote_log_metadata`` tells of a partition: all of its records are in one, in order.

Source: ``RemoteLogMetadataTopicPartitioner``; ``TopicIdPartition.hashCode``, which leaves the topic's name out;
``Utils.murmur2`` in Kafka's clients module.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from resnap.storage.messages.wire import uuid_bytes

if TYPE_CHECKING:
    from resnap.tiering.remote_log.records import TopicIdPartition

_MASK: Final = 0xFFFFFFFF
_POSITIVE: Final = 0x7FFFFFFF
_FACTOR: Final = 31
_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995


def metadata_partition(of: TopicIdPartition, partitions: int) -> int:
    """Return the number of the partition that tells of ``of``, where the topic has ``partitions``."""
    most, least = struct.unpack(">QQ", uuid_bytes(of.id))
    hashed = 1
    for part in (_hash_of_long(least), _hash_of_long(most), of.partition):
        hashed = (_FACTOR * hashed + part) & _MASK
    return (murmur2(struct.pack(">I", hashed)) & _POSITIVE) % partitions


def murmur2(data: bytes) -> int:
    """Return the hash that Kafka's Java client makes of ``data``, as an unsigned number of 32 bits."""
    hashed = _SEED ^ len(data)
    whole = len(data) & ~3
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        mixed = (word * _MULTIPLIER) & _MASK
        mixed = ((mixed ^ (mixed >> 24)) * _MULTIPLIER) & _MASK
        hashed = ((hashed * _MULTIPLIER) & _MASK) ^ mixed
    if rest := data[whole:]:
        hashed = ((hashed ^ int.from_bytes(rest, "little")) * _MULTIPLIER) & _MASK
    hashed = ((hashed ^ (hashed >> 13)) * _MULTIPLIER) & _MASK
    return hashed ^ (hashed >> 15)


def _hash_of_long(value: int) -> int:
    return (value ^ (value >> 32)) & _MASK
