from __future__ import annotations

import errno
import io
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from resnap.replay.watching import Progress
from resnap.scheduler.job.reports import summed_by_topic
from resnap.scheduler.output.progress import LINE_INTERVAL_S, BarProgress, LineProgress, show_progress
from resnap.scheduler.output.records import record
from resnap.scheduler.output.rendering import TABLE_BLOCK, Answer, Column, Output, OutputClosedError
from resnap.scheduler.verbs.census import CensusView
from resnap.scheduler.verbs.explain import ExplainView
from resnap.scheduler.verbs.inspect.files import ENTRY_COLUMNS, SEGMENT_COLUMNS
from resnap.scheduler.verbs.replayed import JudgedView
from resnap.storage.errors import FormatError, ResnapError
from resnap.storage.log.properties import MetaProperties
from resnap.storage.words import human_bytes, human_count, human_duration, instant
from resnap.tiering.quota.producer_census import AGES
from tests.clocks import FixedClock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from resnap.scheduler.output.rendering import Row
    from resnap.scheduler.settings.values import Form

COLUMNS = (Column(key="topic"), Column(key="offset", right=True))


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def rendered(form: Form, answer: Answer, *, is_terminal: bool = False) -> str:
    stream = io.StringIO()
    Output(form, stream, is_terminal=is_terminal).write(answer)
    return stream.getvalue()


def an_answer(**overrides: Any) -> Answer:
    rows = [{"topic": "payments", "offset": 7}, {"topic": "orders", "offset": 1478}]
    usual: dict[str, Any] = {"head": {"file": "x"}, "kind": "partition", "rows": rows,
                             "columns": COLUMNS, "tail": lambda: {"partitions_seen": 2}}  # fmt: skip
    return Answer(**usual | overrides)


def damaged_rows() -> Iterator[dict[str, object]]:
    yield {"topic": "payments", "offset": 7}
    raise FormatError("magic", position=9, expected=2, found=3)


def test_a_table_has_aligned_columns_and_no_trailing_blanks() -> None:
    assert rendered("table", an_answer()).splitlines() == [
        "file  x",
        "topic     offset",
        "payments       7",
        "orders      1478",
        "partitions_seen  2",
    ]


def test_a_table_of_no_rows_has_no_heading() -> None:
    assert rendered("table", an_answer(rows=[])).splitlines() == ["file  x", "partitions_seen  2"]


def test_a_long_table_is_not_held_as_a_whole() -> None:
    pulled = 0

    def rows() -> Iterator[dict[str, object]]:
        nonlocal pulled
        for pulled in range(1, 5 * TABLE_BLOCK + 1):
            yield {"topic": "t", "offset": pulled}

    class Watching(io.StringIO):
        def write(self, text: str) -> int:
            if text.startswith("t "):
                written.append(pulled)
            return super().write(text)

    written: list[int] = []
    stream = Watching()
    Output("table", stream, is_terminal=False).write(Answer(kind="row", rows=rows(), columns=COLUMNS))
    assert len(written) == 5 * TABLE_BLOCK
    assert written[TABLE_BLOCK + 5] <= TABLE_BLOCK + 7


def test_a_terminal_gets_a_table_of_rich_if_it_fits_and_a_plain_one_if_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert "──" in rendered("table", an_answer(), is_terminal=True)
    wide = an_answer(rows=[{"topic": "t" * 60, "offset": 7}])
    assert rendered("table", wide, is_terminal=True).splitlines()[2] == "t" * 60 + "       7"


def test_a_narrow_terminal_gets_no_extra_columns_and_folds_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = (Column(key="topic"), Column(key="bytes", right=True, extra=True), Column(key="why"))
    answer = Answer(kind="row", columns=columns, rows=[{"topic": "t" * 20, "bytes": 10**12, "why": "because " * 4}])
    monkeypatch.setenv("COLUMNS", "80")
    assert "1000000000000" in rendered("table", answer, is_terminal=True)
    monkeypatch.setenv("COLUMNS", "40")
    text = rendered("table", replace(answer, rows=list(answer.rows)), is_terminal=True)
    assert "t" * 20 in text
    assert "1000000000000" not in text
    assert text.count("because") == 4
    assert text.splitlines()[-1] == "Left out, as the terminal is narrow: bytes."
    assert max(map(len, text.splitlines()[:-1])) <= 40
    assert "1000000000000" in rendered("table", answer), "programs get everything"


def test_a_narrow_terminal_folds_each_column_of_text_but_the_names(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = (Column(key="topic"), Column(key="one"), Column(key="other"))
    answer = Answer(
        kind="row", columns=columns, rows=[{"topic": "t" * 20, "one": "some why " * 3, "other": "why " * 6}]
    )
    monkeypatch.setenv("COLUMNS", "60")
    text = rendered("table", answer, is_terminal=True)
    assert "t" * 20 in text
    assert max(map(len, text.splitlines())) <= 60
    assert (text.count("some"), text.count("why")) == (3, 9)


_ROWS: Final = [
    (
        ExplainView.columns,
        {"producerId": 9_000_001, "role": "began-transaction", "baseOffset": 10**9, "lastOffset": 10**9,
         "timestamp": 1_795_225_161_805, "transactionalId": "payments-7", "producerEpoch": 7, "baseSequence": 1,
         "lastSequence": 2, "isTransactional": True, "coordinatorEpoch": 3},
        "TO, EPOCH, SEQUENCE, TO SEQUENCE, TRANSACTIONAL, COORDINATOR EPOCH",
    ),
    (
        JudgedView.columns,
        {"topic": "dash-ed.topic_1", "partition": 0, "snapshots": 8, "outcome": "8 rebuilt", "entries": "5 to 10",
         "coverage": "8 window", "verdict": "2 proven", "missingCount": 1, "differentCount": 1, "byOlderRulesCount": 0},
        "ENTRIES, COVERAGE, BY OLDER RULES",
    ),
    (
        CensusView.columns,
        {"topic": "payments", "partitions": [{}], "producers": 45, "ages": dict.fromkeys((*AGES, "older"), 1),
         "transactional": 22, "openTransactions": 9, "oneBatch": 2, "heapBytes": 11_878},
        "PARTITIONS, TRANSACTIONAL, OPEN, ONE BATCH, HEAP",
    ),
    (
        SEGMENT_COLUMNS,
        {"baseOffset": 10**9, "lastOffset": 10**9, "count": 500, "producerId": 9_000_001, "producerEpoch": 7,
         "maxTimestamp": 1_795_225_161_805, "controlType": "COMMIT", "isTransactional": True, "baseSequence": 1,
         "lastSequence": 2, "compresscodec": "zstd", "size": 16_384, "position": 10**9, "partitionLeaderEpoch": 3,
         "coordinatorEpoch": 3, "magic": 2},
        ("TO, EPOCH, TRANSACTIONAL, SEQUENCE, TO SEQUENCE, CODEC, SIZE, POSITION, LEADER EPOCH, COORDINATOR EPOCH,"
         " MAGIC"),
    ),
    (
        ENTRY_COLUMNS,
        {"producerId": 9_000_001, "producerEpoch": 7, "lastOffset": 10**9, "currentTxnFirstOffset": 10**9,
         "lastTimestamp": 1_795_225_161_805, "lastSequence": 1, "firstSequence": 1, "offsetDelta": 0,
         "coordinatorEpoch": 3},
        "LAST SEQUENCE, FIRST SEQUENCE, OFFSET DELTA, COORDINATOR EPOCH",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "row", "left_out"), _ROWS, ids=["explain", "verify", "census", "segment", "snapshot"]
)
def test_wide_tables_fit_a_terminal_of_80_columns(
    columns: Sequence[Column], row: Row, left_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = rendered("table", Answer(kind="row", rows=[row], columns=columns), is_terminal=True).splitlines()
    assert lines[-1] == f"Left out, as the terminal is narrow: {left_out}."
    assert max(map(len, lines[:-1])) <= 80


def test_states_have_colours_on_a_terminal_unless_none_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = (Column(key="topic"), Column(key="verdict", is_state=True))
    answer = Answer(kind="row", columns=columns, rows=[{"topic": "ready", "verdict": "blocked"}])
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")

    def shown(*, is_terminal: bool) -> str:
        stream = _Terminal() if is_terminal else io.StringIO()
        Output("table", stream).write(answer)
        return stream.getvalue()

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[31mblocked" in shown(is_terminal=True)
    assert "\x1b[32m" not in shown(is_terminal=True), "the name of a topic is no state"
    assert "\x1b" not in shown(is_terminal=False)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[31m" not in shown(is_terminal=True)


def test_brackets_in_a_cell_are_not_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert "local[*] [red]x" in rendered("table", an_answer(rows=[{"topic": "local[*] [red]x"}]), is_terminal=True)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_what_a_file_is_called_does_not_steer_the_terminal(*, is_terminal: bool) -> None:
    steering = {"topic": "a\x1b[2J\x9b31m\udcffb\u202e", "offset": 1}
    text = rendered("table", Answer(head={"file": "x\x1by"}, columns=COLUMNS, rows=[steering]), is_terminal=is_terminal)
    assert r"a\x1b[2J\x9b31m\udcffb\u202e" in text
    assert r"x\x1by" in text
    assert not {"\x1b", "\x9b", "\u202e"} & set(text)


@pytest.mark.parametrize("form", ["json", "ndjson"])
def test_json_can_always_be_written(form: Form) -> None:
    rows = [{"topic": "\udcff"}, {"topic": "é"}]
    text = rendered(form, Answer(kind="topic", rows=rows))
    assert r"\udcff" in text
    assert "é" in text
    text.encode()


def test_json_is_one_document_with_head_rows_and_tail() -> None:
    assert json.loads(rendered("json", an_answer())) == {
        "file": "x",
        "partitions": [{"topic": "payments", "offset": 7}, {"topic": "orders", "offset": 1478}],
        "summary": {"partitions_seen": 2},
    }
    assert json.loads(rendered("json", an_answer(rows=[], head={}, tail=dict))) == {"partitions": []}
    assert json.loads(rendered("json", Answer(head={"topicId": "abc"}))) == {"topicId": "abc"}


def test_lines_of_json_say_what_each_is() -> None:
    lines = [json.loads(line) for line in rendered("ndjson", an_answer()).splitlines()]
    assert [line["type"] for line in lines] == ["partition", "partition", "summary"]
    assert lines[-1] == {"type": "summary", "file": "x", "partitions_seen": 2}


@pytest.mark.parametrize("form", ["table", "json", "ndjson"])
def test_what_came_before_an_error_is_printed_whole(form: Form) -> None:
    stream = io.StringIO()
    with pytest.raises(FormatError):
        Output(form, stream, is_terminal=False).write(an_answer(rows=damaged_rows()))
    text = stream.getvalue()
    if form == "json":
        assert json.loads(text) == {"file": "x", "partitions": [{"topic": "payments", "offset": 7}],
                                    "summary": {"partitions_seen": 2}}  # fmt: skip
    else:
        assert "payments" in text
        assert "partitions_seen" in text


@pytest.mark.parametrize("form", ["table", "json", "ndjson"])
def test_an_interrupt_while_a_row_is_printed_leaves_a_whole_answer(form: Form) -> None:
    """As Ctrl-C does where the reader, such as a pager, pauses: most of the time is spent in that write."""

    class Slow(io.StringIO):
        is_interrupted = False

        def write(self, text: str) -> int:
            written = super().write(text)
            if "payments" in text and not self.is_interrupted:
                self.is_interrupted = True
                raise KeyboardInterrupt
            return written

    stream = Slow()
    with pytest.raises(KeyboardInterrupt):
        Output(form, stream, is_terminal=False).write(an_answer())
    text = stream.getvalue()
    if form == "json":
        assert json.loads(text)["summary"] == {"partitions_seen": 2}
    elif form == "ndjson":
        assert [json.loads(line)["type"] for line in text.splitlines() if line] == ["partition", "summary"]
    else:
        assert text.endswith("partitions_seen  2\n")


def test_prose_is_for_tables_only() -> None:
    assert rendered("table", an_answer(closing=lambda: ["2 in all"])).endswith("2 in all\n")
    assert "2 in all" not in rendered("json", an_answer(closing=lambda: ["2 in all"]))


def test_a_closed_pipe_is_not_taken_for_an_error_of_a_file() -> None:
    class Closed(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    with pytest.raises(OutputClosedError):
        Output("json", Closed()).write(an_answer())


def test_an_output_that_cannot_be_written_is_reported_as_such() -> None:
    class Full(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(ResnapError, match="cannot be printed: No space"):
        Output("json", Full()).write(an_answer())


def test_sizes_counts_durations_and_times_are_for_people() -> None:
    assert [human_bytes(size) for size in (0, 1023, 1536, 5 << 40)] == ["0 B", "1023 B", "1.5 KiB", "5.0 TiB"]
    assert [human_bytes(size) for size in (1024, (1 << 20) - 1, -(1 << 30) + 1)] == ["1.0 KiB", "1.0 MiB", "-1.0 GiB"]
    assert human_count(1478) == "1,478"
    assert [human_duration(s) for s in (0.26, 61, 7980, 90000)] == ["0.3 s", "1 m 1 s", "2 h 13 m", "1 d 1 h"]
    assert [human_duration(s) for s in (59.94, 59.97, 3599.7)] == ["59.9 s", "1 m 0 s", "1 h 0 m"]
    assert instant(1_795_225_161_805) == "2026-11-21T01:39:21.805Z"
    assert instant(2**62) == str(2**62)


def test_a_value_becomes_a_record_in_camel_case() -> None:
    meta = MetaProperties(version=1, node_id=2, cluster_id="c", directory_id=None)
    assert record(meta) == {"version": 1, "nodeId": 2, "clusterId": "c", "directoryId": None}


def test_progress_is_a_line_at_intervals_and_one_at_the_end() -> None:
    clock, stream = FixedClock(0), io.StringIO()
    with show_progress(["replay"], stream, clock, quiet=False, as_json=False) as (progress,):
        progress.expect(3, 3 << 20)
        progress.advance(1, 1 << 20)
        assert stream.getvalue() == ""
        clock.advance(int(LINE_INTERVAL_S * 1000))
        progress.advance(1, 1 << 20)
        progress.advance(1, 1 << 20)
    assert stream.getvalue().splitlines() == [
        "replay: 2/3 segments, 2.0 MiB/3.0 MiB, 10.0 s, 204.8 KiB/s, 5.0 s left",
        "replay: 3/3 segments, 3.0 MiB/3.0 MiB, 10.0 s, 307.2 KiB/s",
    ]


def test_progress_beside_json_is_json() -> None:
    stream = io.StringIO()
    with show_progress(["ship"], stream, FixedClock(0), quiet=False, as_json=True) as (progress,):
        progress.expect(1, 10)
        progress.advance(1, 10)
    assert json.loads(stream.getvalue()) == {
        "progress": {
            "task": "ship",
            "phase": "waiting",
            "tasksRunning": 0,
            "segments": 1,
            "segmentsTotal": 1,
            "bytes": 10,
            "bytesTotal": 10,
            "elapsedMs": 0,
        }
    }


def test_quiet_progress_says_nothing() -> None:
    stream = _Terminal()
    with show_progress(["ship"], stream, FixedClock(0), quiet=True, as_json=False) as (progress,):
        assert type(progress) is Progress
        progress.expect(1, 10)
        progress.advance(1, 10)
    assert stream.getvalue() == ""


def test_nothing_to_do_makes_no_line() -> None:
    stream = io.StringIO()
    with show_progress(["ship"], stream, FixedClock(0), quiet=False, as_json=False) as (progress,):
        assert isinstance(progress, LineProgress)
    assert stream.getvalue() == ""


def test_a_terminal_gets_a_bar_with_the_figures_of_a_line_whole_on_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    clock, stream = FixedClock(0), _Terminal()
    with show_progress(["replay", "ship"], stream, clock, quiet=False, as_json=False) as (replaying, shipping):
        assert isinstance(shipping, BarProgress)
        replaying.at_work("compiling", 1)
        shipping.expect(1000, 1 << 30)
        clock.advance(10_000)
        shipping.advance(500, 1 << 29)
    assert "preparing machine code (first run only)" in stream.getvalue()
    assert "500/1,000 segments, 512.0 MiB/1.0 GiB, 10.0 s, 51.2 MiB/s, 10.0 s left" in stream.getvalue()


def test_a_terminal_shows_two_columns_of_one_value_each_in_its_way() -> None:
    columns = [Column(key="shipped", title="NUMBER", show=lambda _: "31"), Column(key="shipped", title="KINDS")]
    text = rendered("table", Answer(columns=columns, rows=[{"shipped": "kept"}]), is_terminal=True)
    assert text.split() == ["NUMBER", "KINDS", *[one for one in text.split() if set(one) == {"\u2500"}], "31", "kept"]


def test_too_many_partitions_are_one_row_a_topic_with_numbers_and_chosen_lists_added_up() -> None:
    rows = [
        {"topic": f"t{number % 2}", "partition": number, "already": 2, "shipped": [number], "refused": ["x"],
         "startOffset": 7, "blocking": None, "topicId": None}
        for number in range(51)
    ]  # fmt: skip
    assert summed_by_topic(rows[:50], "shipped", "shipped") == rows[:50]
    first, second = summed_by_topic(rows, "shipped", "shipped")
    assert first == {
        "topic": "t0", "partition": "* (26)", "already": 52, "shipped": [*range(0, 51, 2)], "refused": None,
        "startOffset": None, "blocking": None, "topicId": None,
    }  # fmt: skip
    assert (second["topic"], second["already"]) == ("t1", 50)
