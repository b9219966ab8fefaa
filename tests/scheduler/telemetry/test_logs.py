"""The service's log: a line an event, ids bound, what libraries warn of taken over, and no secret in any of it."""

from __future__ import annotations

import io
import json
import logging
import threading
import warnings
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.scheduler.settings.values import redact
from resnap.scheduler.telemetry import logs
from resnap.scheduler.telemetry.logs import redacted_value
from tests.cases import each

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logs.logger("resnap.scheduler.telemetry.test")


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Put back what ``set_up`` changes for the whole process."""
    root, hook = logging.getLogger(), threading.excepthook
    handlers, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in logs.OURS}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    threading.excepthook = hook
    logging.captureWarnings(capture=False)
    for name, before in levels.items():
        logging.getLogger(name).setLevel(before)


def json_log(*, is_verbose: bool = False) -> io.StringIO:
    stream = io.StringIO()
    logs.set_up(stream, "json", is_verbose=is_verbose)
    return stream


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def fail(message: str = "first line\nsecond line") -> None:
    raise ValueError(message)


def test_an_event_is_a_line_of_json_with_its_values() -> None:
    stream = json_log()
    log.info("run began", kind="tier", partitions=3, dirs=("/a", "/b"), ratio=0.5, plan=None)
    (line,) = lines(stream)
    assert str(line.pop("timestamp")).endswith("Z")
    assert line == {
        "level": "info",
        "logger": "resnap.scheduler.telemetry.test",
        "event": "run began",
        "kind": "tier",
        "partitions": 3,
        "dirs": ["/a", "/b"],
        "ratio": 0.5,
        "plan": None,
    }


def test_what_is_bound_is_in_every_line_meanwhile_and_in_none_afterwards() -> None:
    stream = json_log()
    with logs.bound(run="r1"):
        with logs.bound(partition="payments-0"):
            log.info("replayed")
            logging.getLogger("botocore").warning("retrying %s", "PutObject")
        log.info("done")
    log.info("idle")
    found = [(line.get("run"), line.get("partition"), line["event"]) for line in lines(stream)]
    assert found == [
        ("r1", "payments-0", "replayed"),
        ("r1", "payments-0", "retrying PutObject"),
        ("r1", None, "done"),
        (None, None, "idle"),
    ]


def test_libraries_are_logged_from_warnings_on_and_ours_from_info_on() -> None:
    stream = json_log()
    for name in ("uvicorn.error", "apscheduler.scheduler", "py4j.clientserver", "botocore.endpoint"):
        logging.getLogger(name).info("chatter")
        logging.getLogger(name).warning("heard")
    log.debug("too much")
    logging.getLogger("resnap.replay.spark.context").info("ours")
    assert [line["event"] for line in lines(stream)] == ["heard"] * 4 + ["ours"]


def test_verbose_logs_our_debug_messages_and_not_those_of_libraries() -> None:
    stream = json_log(is_verbose=True)
    log.debug("ours")
    logging.getLogger("botocore").debug("theirs")
    assert [line["event"] for line in lines(stream)] == ["ours"]


def test_an_error_is_one_line_with_its_traceback_and_without_values_of_variables() -> None:
    stream = json_log()
    a_local_value = "not to be seen"
    try:
        fail()
    except ValueError:
        log.exception("run failed", length=len(a_local_value))
    (line,) = lines(stream)
    assert str(line["exception"]).startswith("Traceback")
    assert str(line["exception"]).endswith("ValueError: first line\nsecond line")
    assert a_local_value not in stream.getvalue()


def test_the_error_that_ends_a_thread_is_logged() -> None:
    stream = json_log()
    thread = threading.Thread(target=fail, name="ship-1")
    thread.start()
    thread.join()
    (line,) = lines(stream)
    assert (line["level"], line["thread"]) == ("critical", "ship-1")
    assert "ValueError" in str(line["exception"])


def test_warnings_of_python_are_logged() -> None:
    stream = json_log()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=True)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    assert "DeprecationWarning: old" in str(lines(stream)[0]["event"])


def test_the_console_form_has_one_line_an_event_whatever_the_values() -> None:
    stream = io.StringIO()
    logs.set_up(stream, "console")
    with logs.bound(run="r1"):
        log.warning("left out", topic="x\n2026-01-01 [error] forged", escape="\x1b[31m")
    logging.getLogger("uvicorn").error("GET /\r\nforged \x1b[2J")
    first, second = stream.getvalue().splitlines()
    assert "[warning" in first
    assert "run=r1" in first
    assert r"\n2026" in first
    assert "\x1b" not in first + second
    assert r"\r\nforged" in second


def test_the_console_form_prints_a_traceback_as_python_does() -> None:
    stream = io.StringIO()
    logs.set_up(stream, "console")
    try:
        fail()
    except ValueError:
        log.exception("run failed")
    first, second, *_, last = stream.getvalue().splitlines()
    assert "run failed" in first
    assert second == "Traceback (most recent call last):"
    assert last == "second line"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "is_json"), [(io.StringIO(), True), (Terminal(), False)])
def test_left_to_itself_the_form_is_json_but_on_a_terminal(stream: io.StringIO, is_json: bool) -> None:
    logs.set_up(stream, "auto")
    log.info("up")
    assert stream.getvalue().startswith("{") is is_json


def test_setting_up_again_changes_form_and_level_without_a_second_handler() -> None:
    json_log(is_verbose=True)
    stream = json_log()
    log.debug("not any more")
    log.info("once")
    assert [line["event"] for line in lines(stream)] == ["once"]


SECRET = "s3cr3t-wJalrXUtnFEMI"


@each(
    "text",
    [
        f"https://user:{SECRET}@store/bucket: refused",
        f"s3://AKIAIOSFODNN7EXAMPLE:{SECRET}@bucket/prefix",
        f"s3://key:{SECRET}@bucket, s3://other/x",
        f'{{"url": "s3://key:{SECRET}@bucket"}}',
        f"GET https://store/x?X-Amz-Signature={SECRET}&a=b",
        f"Authorization: Bearer {SECRET}",
        f"{{'authorization': 'Bearer {SECRET}'}}",
        f"bearer {SECRET} is not known",
        f"aws_secret_access_key={SECRET}",
        f'{{"password": "{SECRET}"}}',
        f"sasl.password = {SECRET}, and more",
        f"--token={SECRET}",
        f"spark.hadoop.fs.azure.account.key.store.dfs.core.windows.net={SECRET}",
        f"--spark-conf spark.ssl.keyPass={SECRET}",
    ],
)
def test_secrets_in_text_are_masked_in_messages_values_and_tracebacks(text: str) -> None:
    assert SECRET not in redact(text)
    assert "***" in redact(text)
    stream = json_log()
    log.info(text, detail=text, nested={"of": [text]})
    logging.getLogger("botocore").warning("%s", text)
    try:
        fail(text)
    except ValueError:
        log.exception("failed")
    assert len(lines(stream)) == 3
    assert SECRET not in stream.getvalue()


def test_access_key_ids_and_tokens_are_masked() -> None:
    assert "0123456789abcdef" not in redact("resnap_0123456789abcdefghijklmnopqrstuvwxyzABCDEFG")
    assert redact("credentials AKIAIOSFODNN7EXAMPLE were refused") == "credentials *** were refused"


@pytest.mark.parametrize("name", ["token", "s3_secret_access_key", "ssl.keystore.password", "credentials"])
def test_values_under_names_of_secrets_are_masked(name: str) -> None:
    assert redacted_value(name, SECRET) == "***"
    assert redacted_value("settings", {name: SECRET, "topic": "payments"}) == {name: "***", "topic": "payments"}
    assert redacted_value(name, 12345) == "***"
    assert redacted_value("secretsLeftOut", 3) == 3, "how many there are is not a secret"


@each(
    "text",
    [
        "run began",
        "payments-0",
        "file:///data/kafka",
        "s3://bucket/prefix",
        "tokens of 3 principals",
        "12 of 14 segments",
        "https://s3.example/bucket?list-type=2&prefix=a&max-keys=1000",
        "GET /bucket?key-marker=a/b&max-keys=1000: 503",
        "s3://bucket/prefix/a@b",
        "payments-0: 98 missing",
        "resnap_segments_missing_snapshot",
        "me@example.org",
    ],
)
def test_what_is_not_a_secret_stays(text: str) -> None:
    assert redact(text) == text


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=5), st.text())
def test_whatever_is_logged_is_one_line_of_json(value: object, event: str) -> None:
    stream = json_log()
    log.info(event, value=value)
    assert len(lines(stream)) == 1
