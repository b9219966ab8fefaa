"""Records as rows of a table: one row per record that a client wrote, those of compressed batches included.

Batches are read whole, checked by their checksums, and decompressed if a column needs it; control records give no rows,
and so do records below the log start offset, which no consumer sees. The offset of a message inside a compressed one
counts from the last of them (KIP-31), in magic 0 it is its own. Rows come in pieces of a megabyte, or of one batch if
that is larger.

The header of a batch says how many records it has, their offsets, unless a cleaner has taken some, and their time, if
that is LogAppendTime: what asks for no more leaves the records unread.

Source: ``DefaultRecord``, ``AbstractLegacyRecordBatch.DeepRecordsIterator`` in Kafka's clients module.
"""

from __future__ import annotations

from functools import partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from resnap.replay.kernel.records import (
    BATCH_DTYPE,
    HEADER_DTYPE,
    RECORD_DTYPE,
    are_intact,
    find_batches,
    gather,
    read_batches,
    read_records,
)
from resnap.replay.scan.header_scan import LARGE_BLOCK_BYTES, ScanFacts, read_blocks, whole_batch
from resnap.replay.spark.header_rows import DAMAGE, HEADERS, RECORD_SCHEMA, damage_rows, unless_absent
from resnap.replay.spark.transaction_ends import TransactionEnds
from resnap.storage.errors import FormatError
from resnap.storage.log.compression import STREAMS, decompress, decompress_into
from resnap.storage.log.message_set import (
    MAGIC_V0,
    LegacyMessage,
    check_legacy_crc,
    read_key_and_value,
    read_legacy_message,
)
from resnap.storage.log.record import read_client_records
from resnap.storage.log.record_batch import (
    COMPRESSION_MASK,
    CONTROL,
    HEADER,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    check_crc,
    compression_name,
)
from resnap.storage.sources.files import PLAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy.typing as npt

    from resnap.replay.kernel.summary import Array
    from resnap.replay.scan.header_scan import Block
    from resnap.replay.spark.header_rows import LogSegment
    from resnap.storage.crc32c import Buffer
    from resnap.storage.readers import RangeReader
    from resnap.storage.sources.files import Sources

_OF_RECORDS: Final = frozenset({"key", "valueSize", "headersCount", "value", "headers"})
"""The columns for which all batches are decompressed."""
_PIECE_BYTES: Final = 1 << 20
_MOST_BYTES: Final = (1 << 31) - 1 - _PIECE_BYTES
"""The most bytes of a decompressed batch: Arrow counts the bytes of a column in 31 bits."""
_LEAST_RECORD_BYTES: Final = 7
_PIECE_ROWS: Final = 1 << 18
"""A batch of more rows is read before they are made: a header may say what it likes."""
_Fields: TypeAlias = "tuple[int, int, Buffer | None, Buffer | None, Sequence[tuple[Buffer, Buffer | None]]]"
"""Offset and timestamp, or their deltas, key, value and headers of a record."""


class _Parsed(NamedTuple):
    """The records of batches, as addresses in ``data``, which must outlive them."""

    data: Sequence[Buffer]
    records: Array
    """``RECORD_DTYPE``"""
    headers: Array
    """``HEADER_DTYPE``"""


class _Batch(NamedTuple):
    """What the rows of a batch, or of an old message, need besides its records."""

    at: int
    committed: int
    """-1 while its transaction is open."""
    base_offset: int
    partition_leader_epoch: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    records_count: int


_OF_HEADER: Final = _Batch._fields[2:]


def read_record_rows(
    segment: LogSegment,
    sources: Sources = PLAIN,
    columns: Sequence[str] = tuple(RECORD_SCHEMA.names),
    *,
    skips_damage: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of ``segment`` with the ``columns`` of ``RECORD_SCHEMA``; in a block, old messages come first.

    If it ``skips_damage``, a damaged batch, or what follows damage that hides the next batch, gives a row that says so
    in the column ``DAMAGE``. Transactions whose ends may be there are open.

    Raises:
        FormatError: damage, with file and position; what came before it has been yielded.
        LogDirError, StoreError: the file does not exist, or cannot be read.

    """
    yield from _RecordRows(segment, sources, columns, skips_damage).read()


class _RecordRows:
    def __init__(self, segment: LogSegment, sources: Sources, columns: Sequence[str], skips_damage: bool) -> None:
        self._segment = segment
        self._sources = sources
        self._schema = pa.schema([DAMAGE if name == DAMAGE.name else RECORD_SCHEMA.field(name) for name in columns])
        self._columns = frozenset(columns)
        self._skips_damage = skips_damage
        self._ends = TransactionEnds(segment, sources, skips_damage=skips_damage) if "committed" in columns else None
        self._batches: list[npt.NDArray[np.int64]] = []
        """Rows with the fields of ``_Batch``."""
        self._parsed: list[_Parsed] = []
        """The records of the same batches."""
        self._held_bytes = 0
        self._damage: dict[str, FormatError] = {}
        """What was skipped, by its text."""

    def read(self) -> Iterator[pa.RecordBatch]:
        whole = self._segment.range
        with self._sources.open(whole.locator) as reader:
            try:
                for block in read_blocks(reader, whole, ScanFacts(), find_batches, LARGE_BLOCK_BYTES):
                    yield from self._pieces(reader, block)
            except FormatError as error:
                self._skip(error)
        for unread in () if self._ends is None else self._ends.damage:
            self._skip(unread)
        if self._damage:
            yield damage_rows(self._segment, self._damage.values(), self._schema)

    def _pieces(self, reader: RangeReader, block: Block) -> Iterator[pa.RecordBatch]:
        for add in chain(self._messages(reader, block), self._batches_of(reader, block)):
            try:
                add()
            except FormatError as error:
                self._skip(error)
            if self._held_bytes >= _PIECE_BYTES:
                yield self._rows()
        if self._batches:
            yield self._rows()

    def _skip(self, error: FormatError) -> None:
        error.file = error.file or self._segment.range.locator
        if not self._skips_damage:
            raise error
        self._damage[str(error)] = error

    def _messages(self, reader: RangeReader, block: Block) -> Iterator[Callable[[], None]]:
        for position, message in block.messages:
            at = block.at + position
            if message.offset >= self._segment.log_start_offset:
                yield partial(self._add_message, reader, at, message.size_bytes)

    def _add_message(self, reader: RangeReader, at: int, size_bytes: int) -> None:
        start = self._segment.log_start_offset
        parsed = _field_arrays(field for field in _legacy_fields(reader.read(at, size_bytes), at) if field[0] >= start)
        self._add_one(_Batch(at, 1, 0, -1, 0, 0, 0, 0, 0), parsed)

    def _batches_of(self, reader: RangeReader, block: Block) -> Iterator[Callable[[], None]]:
        headers = block.headers
        committed = np.ones(len(headers), np.int64) if self._ends is None else self._ends.committed(block)
        columns = (headers[name].astype(np.int64) for name in _OF_HEADER)
        batches = np.column_stack((block.at + block.positions, committed, *columns))
        are_of_clients = headers["attributes"] & CONTROL == 0
        need_records = self._need_records(headers)
        for some, is_usual in self._stretches(block):
            read, unread = some[need_records[some]], some[~need_records[some]]
            for group, parsed in chain(_unread(block, unread), _groups(block, read)) if is_usual else ((some, None),):
                if parsed is not None:
                    yield partial(self._add, batches[group][are_of_clients[group]], parsed)
                    continue
                for index in group.tolist():
                    batch = _Batch(*batches[index].tolist())
                    if batch.base_offset + batch.last_offset_delta >= self._segment.log_start_offset:
                        yield partial(self._add_batch, reader, block, index, batch, bool(need_records[index]))

    def _need_records(self, headers: Array) -> npt.NDArray[np.bool_]:
        """Return of which batches the records have to be read, for the columns."""
        counts = headers["records_count"].astype(np.int64)
        found: npt.NDArray[np.bool_] = (counts > _PIECE_ROWS) | (not _OF_RECORDS.isdisjoint(self._columns))
        if "offset" in self._columns:
            found |= counts != headers["last_offset_delta"].astype(np.int64) + 1
        if "timestamp" in self._columns:
            found |= headers["attributes"] & LOG_APPEND_TIME == 0
        return found

    def _stretches(self, block: Block) -> Iterator[tuple[npt.NDArray[np.int64], bool]]:
        """Yield neighbouring batches, by number, and whether they can be read together, a megabyte at most or one.

        Those are whole, and have as many records as their offsets can.
        """
        headers, counts = block.headers, block.headers["records_count"].astype(np.int64)
        ends = block.positions + LOG_OVERHEAD + headers["batch_length"]
        are_usual = (headers["base_offset"] >= self._segment.log_start_offset) & (ends <= len(block.data))
        are_usual &= (counts > 0) & (counts <= headers["last_offset_delta"].astype(np.int64) + 1)
        are_full = (np.diff(ends // _PIECE_BYTES) != 0) | (np.diff(counts.cumsum() // _PIECE_ROWS) != 0)
        differ = np.flatnonzero(np.diff(are_usual) | are_full) + 1
        for start, stop in pairwise([0, *differ.tolist(), len(headers)]):
            if start < stop:
                yield np.arange(start, stop), bool(are_usual[start])

    def _add_batch(self, reader: RangeReader, block: Block, index: int, batch: _Batch, needs_records: bool) -> None:
        at, count, start = batch.at, batch.records_count, self._segment.log_start_offset
        content, is_cut = whole_batch(reader, block, index), batch.base_offset < start
        if batch.attributes & CONTROL:
            check_crc(content, at=at)
        elif needs_records or is_cut or not 0 <= count <= batch.last_offset_delta + 1:
            records = _content(content, memoryview(content)[HEADER.size :], compression_name(batch.attributes), at)
            parsed = _parse_records(records, count, at)
            if is_cut:
                fields = _fields(records, count, at)
                parsed = _field_arrays(field for field in fields if batch.base_offset + field[0] >= start)
            self._add_one(batch, parsed)
        else:
            check_crc(content, at=at)
            self._add_one(batch, _numbered(np.array([count])))

    def _add_one(self, batch: _Batch, parsed: _Parsed) -> None:
        self._add(np.array([batch._replace(records_count=len(parsed.records))], dtype=np.int64), parsed)

    def _add(self, batches: npt.NDArray[np.int64], parsed: _Parsed) -> None:
        self._parsed.append(parsed)
        self._held_bytes += sum(map(len, parsed.data)) or parsed.records.nbytes
        self._batches.append(batches)

    def _rows(self) -> pa.RecordBatch:
        """Return the rows of the batches held, and let go of these."""
        columns = _Columns(self._segment, self._batches, self._parsed)
        self._batches, self._parsed, self._held_bytes = [], [], 0
        return pa.RecordBatch.from_arrays([columns.array(name) for name in self._schema.names], schema=self._schema)


class _Columns:
    """The rows of ``batches``, column by column."""

    def __init__(
        self, segment: LogSegment, batches: Sequence[npt.NDArray[np.int64]], parsed: Sequence[_Parsed]
    ) -> None:
        self._segment = segment
        self._parsed = parsed  # keeps the bytes that addresses lead to
        self._batches = dict(zip(_Batch._fields, np.concatenate(batches).T, strict=True))
        self._count = int(self._batches["records_count"].sum())
        self._records = _one_array([file.records for file in parsed], RECORD_DTYPE)
        self._headers = _one_array([file.headers for file in parsed if len(file.headers)], HEADER_DTYPE)

    def array(self, name: str) -> pa.Array:
        """Return a column of ``RECORD_SCHEMA``, or the empty ``DAMAGE``."""
        records, each, segment = self._records, self._of_batch, self._segment
        made: dict[str, Callable[[], pa.Array]] = {
            "topic": lambda: self._same(pa.scalar(segment.topic, pa.string())),
            "partition": lambda: self._same(pa.scalar(segment.partition, pa.int32())),
            "segment": lambda: self._same(pa.scalar(segment.range.base_offset, pa.int64())),
            "position": lambda: pa.array(each("at")),
            "offset": lambda: pa.array(each("base_offset") + records["offset_delta"]),
            "timestamp": lambda: unless_absent(self._timestamps()),
            "key": lambda: _binary(records["key_at"], records["key_length"]),
            "valueSize": lambda: unless_absent(records["value_length"], np.int32),
            "headersCount": lambda: pa.array(records["headers"].astype(np.int32)),
            "value": lambda: _binary(records["value_at"], records["value_length"]),
            "headers": self._header_lists,
            "leaderEpoch": lambda: unless_absent(each("partition_leader_epoch"), np.int32),
            "committed": lambda: unless_absent(each("committed"), np.bool_),
            DAMAGE.name: lambda: self._same(pa.scalar(None, DAMAGE.type)),
        }
        return made[name]()

    def _same(self, value: pa.Scalar) -> pa.Array:
        return pa.repeat(value, self._count)

    def _of_batch(self, name: str) -> npt.NDArray[np.int64]:
        """Return for each row the value of its batch."""
        return np.repeat(self._batches[name], self._batches["records_count"])

    def _timestamps(self) -> npt.NDArray[np.int64]:
        by_broker = self._of_batch("attributes") & LOG_APPEND_TIME != 0
        by_client = self._of_batch("base_timestamp") + self._records["timestamp_delta"]
        return np.where(by_broker, self._of_batch("max_timestamp"), by_client)

    def _header_lists(self) -> pa.Array:
        keys = _binary(self._headers["key_at"], self._headers["key_length"])
        try:
            names = keys.cast(pa.string())
        except pa.ArrowInvalid:  # as Java's clients show bytes that are no UTF-8
            names = pa.array([key.decode(errors="replace") for key in keys.to_pylist()], type=pa.string())
        values = _binary(self._headers["value_at"], self._headers["value_length"])
        pairs = pa.StructArray.from_arrays([names, values], fields=list(HEADERS.value_type))
        return pa.ListArray.from_arrays(pa.array(_ends(self._records["headers"])), pairs, type=HEADERS)


def _one_array(parts: Sequence[Array], kind: np.dtype[np.void]) -> Array:
    """Return ``parts`` as one array, by way of numbers: to compare the fields of records takes longer than all else."""
    return np.concatenate([np.zeros(0, dtype=np.int64), *(part.view(np.int64) for part in parts)]).view(kind)


def _binary(addresses: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> pa.Array:
    """Return the fields at ``addresses``; one whose length is -1 is null."""
    addresses, lengths = np.ascontiguousarray(addresses), np.ascontiguousarray(lengths)
    ends, is_null = _ends(np.maximum(lengths, 0)), lengths < 0
    content = np.empty(int(ends[-1]), dtype=np.uint8)
    gather(addresses.ctypes.data, lengths.ctypes.data, len(lengths), content.ctypes.data)
    valid = pa.py_buffer(np.packbits(~is_null, bitorder="little")) if is_null.any() else None
    return pa.Array.from_buffers(pa.binary(), len(lengths), [valid, pa.py_buffer(ends), pa.py_buffer(content)])


def _ends(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """Return where fields of these lengths begin and end, side by side, as Arrow wants it."""
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)


def _unread(block: Block, some: npt.NDArray[np.int64]) -> Iterator[tuple[npt.NDArray[np.int64], _Parsed | None]]:
    """Yield ``some`` whole batches, if any, with what headers say of their records; with None as in ``_groups``."""
    if len(some):
        _, batches = _whole(block, some)
        yield some, _numbered(batches["count"]) if are_intact(batches.ctypes.data, len(batches)) else None


def _numbered(counts: npt.NDArray[np.int64]) -> _Parsed:
    """Return records of so many batches with nothing but their offsets, of which none is missing."""
    records = np.zeros(int(counts.sum()), RECORD_DTYPE)
    records["offset_delta"] = np.arange(len(records)) - np.repeat(counts.cumsum() - counts, counts)
    return _Parsed((), records, _NO_HEADERS)


def _groups(block: Block, some: npt.NDArray[np.int64]) -> Iterator[tuple[npt.NDArray[np.int64], _Parsed | None]]:
    """Yield ``some`` whole batches in groups of a decompressed megabyte at most, or of one batch, with their records.

    A group has None if one is damaged or has unusual records.
    """
    start, content, ends = 0, memoryview(bytearray()), [0]
    attributes, begins = block.headers["attributes"][some], block.positions[some]
    stops = begins + LOG_OVERHEAD + block.headers["batch_length"][some]
    for index in np.flatnonzero(attributes & COMPRESSION_MASK).tolist():
        batch, room = block.data[int(begins[index]) : int(stops[index])], content[ends[-1] :]
        try:
            records, name = batch[HEADER.size :], compression_name(int(attributes[index]))
            if name not in STREAMS:  # where it does not fit, it is not decompressed again
                records, name = memoryview(decompress(records, name)), "none"
            size = decompress_into(room, records, name) if room else None
            if size is None:
                if start < index:
                    yield some[start:index], _parsed_batches(block, some[start:index], content, ends)
                start, ends, content = index, [0], np.empty(_PIECE_BYTES, np.uint8).data
                size = decompress_into(content, records, name)
            if size is None:
                content = memoryview(_content(batch, records, name, 0))
                size = len(content)
        except FormatError:
            yield some[start:], None
            return
        ends.append(ends[-1] + size)
    if start < len(some):
        yield some[start:], _parsed_batches(block, some[start:], content, ends)


def _whole(block: Block, some: npt.NDArray[np.int64]) -> tuple[Buffer, Array]:
    """Return the bytes of ``some`` whole batches, and where they are (``BATCH_DTYPE``), as if none was compressed."""
    within, positions = block.headers[some], block.positions[some]
    sizes = LOG_OVERHEAD + within["batch_length"].astype(np.int64)
    data = block.data[int(positions[0]) : int(positions[-1] + sizes[-1])]
    plain, batches = np.frombuffer(data, np.uint8), np.empty(len(within), BATCH_DTYPE)
    batches["at"] = plain.ctypes.data + positions - positions[0]
    batches["size"], batches["crc"] = sizes, within["crc"]
    batches["records_at"], batches["records_size"] = batches["at"] + HEADER.size, sizes - HEADER.size
    batches["count"] = np.where(within["attributes"] & CONTROL == 0, within["records_count"], 0)
    return data, batches


def _parsed_batches(
    block: Block, some: npt.NDArray[np.int64], content: memoryview, ends: Sequence[int]
) -> _Parsed | None:
    """Return the records of whole batches; None as in ``_groups``.

    Those of compressed ones are in ``content``, between the ``ends``.
    """
    (data, batches), size = _whole(block, some), ends[-1]
    # A group may be much smaller than the room made for it, and is held with others.
    content = content[:size] if 2 * size > len(content) else memoryview(bytes(content[:size]))
    compressed = block.headers["attributes"][some] & COMPRESSION_MASK != 0
    decompressed = np.frombuffer(content, np.uint8)
    batches["records_at"][compressed] = decompressed.ctypes.data + np.array(ends[:-1])
    batches["records_size"][compressed] = np.diff(ends)
    is_possible = (batches["count"] <= batches["records_size"] // _LEAST_RECORD_BYTES).all()
    if not is_possible or not are_intact(batches.ctypes.data, len(batches)):
        return None
    records, headers = np.empty(int(batches["count"].sum()), RECORD_DTYPE), _NO_HEADERS
    given = batches.ctypes.data, len(batches), records.ctypes.data
    found = read_batches(*given, 0, 0)
    if found > 0:
        headers = np.empty(found, HEADER_DTYPE)
        read_batches(*given, headers.ctypes.data, found)
    return _Parsed((data, content), records, headers) if found >= 0 else None


def _content(batch: Buffer, records: Buffer, codec: str, at: int) -> Buffer:
    """Return the decompressed ``records`` of a whole ``batch``; raises as ``check_crc`` and ``decompress`` do."""
    check_crc(batch, at=at)
    content = decompress(records, codec, at=at)
    if len(content) > _MOST_BYTES:
        found = len(content)
        raise FormatError("decompressed records", position=at, expected=f"at most {_MOST_BYTES} bytes", found=found)
    return content


def _parse_records(records: Buffer, count: int, at: int) -> _Parsed:
    """Return the ``count`` records that fill ``records``; raises as ``read_client_records`` does."""
    size = len(records)
    if 0 < count <= size // _LEAST_RECORD_BYTES:
        content = np.frombuffer(records, dtype=np.uint8)
        address = content.ctypes.data
        parsed, headers = np.empty(count, RECORD_DTYPE), _NO_HEADERS
        found = read_records(address, size, count, parsed.ctypes.data, 0, 0)
        if found > 0:
            headers = np.empty(found, HEADER_DTYPE)
            read_records(address, size, count, parsed.ctypes.data, headers.ctypes.data, found)
        if found >= 0:
            return _Parsed((records,), parsed, headers)
    return _field_arrays(_fields(records, count, at))


def _fields(records: Buffer, count: int, at: int) -> Iterator[_Fields]:
    for record, headers in read_client_records(records, count, at=at):
        yield record.offset_delta, record.timestamp_delta, record.key, record.value, headers


def _field_arrays(records: Iterable[_Fields]) -> _Parsed:
    """Return ``records`` with their fields side by side."""
    data, rows, headers = bytearray(), [], []

    def keep(field: Buffer | None) -> tuple[int, int]:
        data.extend(field or b"")
        return len(data) - len(field or b""), -1 if field is None else len(field)

    for offset, timestamp, key, value, own in records:
        rows.append((_int64(timestamp), _int64(offset), *keep(key), *keep(value), len(own)))
        headers += [(*keep(name), *keep(content)) for name, content in own]
    kept = np.frombuffer(bytes(data) or b"\0", dtype=np.uint8)
    found = _Parsed((kept.data,), np.array(rows, dtype=RECORD_DTYPE), np.array(headers, dtype=HEADER_DTYPE))
    for array in found.records, found.headers:
        array["key_at"] += kept.ctypes.data
        array["value_at"] += kept.ctypes.data
    return found


def _legacy_fields(message: Buffer, at: int) -> Iterator[_Fields]:
    outer = read_legacy_message(message, at=at)
    check_legacy_crc(message, at=at)
    key, value = read_key_and_value(message, outer, at=at)
    if not outer.is_compressed or value is None:
        yield outer.offset, outer.timestamp, key, value, ()
        return
    inside = list(_messages(decompress(value, compression_name(outer.attributes), at=at), at))
    first = 0 if outer.magic == MAGIC_V0 or not inside else outer.offset - inside[-1][0].offset
    for inner, data in inside:
        timestamp = outer.timestamp if outer.attributes & LOG_APPEND_TIME else inner.timestamp
        yield first + inner.offset, timestamp, *read_key_and_value(data, inner, at=at), ()


def _messages(messages: Buffer, at: int) -> Iterator[tuple[LegacyMessage, memoryview]]:
    view, position = memoryview(messages), 0
    while position < len(view):
        message = read_legacy_message(view, position, at=at)
        yield message, view[position : position + message.size_bytes]
        position += message.size_bytes


def _int64(value: int) -> int:
    """Return ``value`` as Java's ``long`` has it: a delta that a client has written may lead beyond its ends."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


_NO_HEADERS: Final = np.empty(0, dtype=HEADER_DTYPE)
