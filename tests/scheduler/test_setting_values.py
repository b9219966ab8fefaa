from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.scheduler.settings.values import (
    MASK,
    duration_text,
    json_form,
    parse_as_of,
    parse_duration,
    parse_size,
    shown_as,
    split_list,
)
from tests.cases import each


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7d", timedelta(days=7)),
        ("36h", timedelta(hours=36)),
        ("15m", timedelta(minutes=15)),
        ("1d12h", timedelta(hours=36)),
        ("1d 12h", timedelta(hours=36)),
        ("250ms", timedelta(milliseconds=250)),
        ("2w", timedelta(days=14)),
    ],
)
def test_a_duration_is_numbers_with_units(text: str, expected: timedelta) -> None:
    assert parse_duration(text) == expected


@each("text", ["", "7", "d", "7 days", "-1h", "1.5h", "7d!", "999999999999w"])
def test_a_duration_without_a_known_unit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a duration"):
        parse_duration(text)


@given(st.integers(min_value=0, max_value=10**14))
def test_a_duration_is_shown_as_it_is_read(milliseconds: int) -> None:
    duration = timedelta(milliseconds=milliseconds)
    assert parse_duration(duration_text(duration)) == duration


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("131072", 131_072),
        ("128KiB", 131_072),
        ("256 MiB", 268_435_456),
        ("1gib", 1 << 30),
        ("10B", 10),
        ("2TiB", 2 << 40),
    ],
)
def test_a_size_is_a_number_with_a_binary_unit_or_of_bytes(text: str, expected: int) -> None:
    assert parse_size(text) == expected


@each("text", ["", "k", "1k", "1MB", "1.5MiB", "-1KiB", "1 MiB 2", "٣KiB3"])
def test_a_size_that_could_mean_two_things_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a size"):
        parse_size(text)


def test_a_time_must_have_a_zone() -> None:
    assert parse_as_of("2026-01-31T12:00:00Z") == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert parse_as_of("2026-01-31T13:00:00+01:00") == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert parse_as_of("roll") == "roll"
    with pytest.raises(ValueError, match="with its zone"):
        parse_as_of("2026-01-31T12:00:00")
    with pytest.raises(ValueError, match="expected now, roll"):
        parse_as_of("yesterday")


def test_a_list_is_split_at_commas_and_keeps_no_empty_parts() -> None:
    assert split_list("pay*, ,orders,") == ("pay*", "orders")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("https://me:pass@store:9000/x", f"https://{MASK}@store:9000/x"),
        ("https://token@store/x", f"https://{MASK}@store/x"),
        ("https://me:p@ss@store/x", f"https://{MASK}@store/x"),
        ("https://store/x?X-Amz-Signature=abc&part=1", f"https://store/x?X-Amz-Signature={MASK}&part=1"),
        ("me@example.org", "me@example.org"),
    ],
)
def test_credentials_in_urls_are_masked(value: str, expected: str) -> None:
    assert json_form(value) == expected


def test_entries_with_names_of_secrets_are_masked() -> None:
    conf = {"spark.hadoop.fs.s3a.secret.key": "abc", "fs.s3a.access.key": "def", "spark.cores.max": "2"}
    assert json_form(conf) == {
        "spark.hadoop.fs.s3a.secret.key": MASK,
        "fs.s3a.access.key": MASK,
        "spark.cores.max": "2",
    }


@each(
    "name",
    [
        "listener.name.ssl.ssl.keystore.password",
        "listener.name.sasl_ssl.plain.sasl.jaas.config",
        "ssl.keystore.key",
        "ssl.keystore.certificate.chain",
        "ssl.truststore.certificates",
        "delegation.token.master.key",
        "password.encoder.secret",
        "spark.hadoop.fs.azure.account.key.store.dfs.core.windows.net",
        "spark.hadoop.fs.azure.sas.box.store.blob.core.windows.net",
        "spark.ssl.keyPass",
        "spark.ssl.rpc.privateKeyPassword",
        "spark.authenticate.secret",
    ],
)
def test_what_kafka_holds_for_a_password_is_masked(name: str) -> None:
    assert shown_as(name, "hunter2") == MASK
    assert json_form({name: "hunter2"}) == {name: MASK}


def test_a_property_of_spark_is_masked_by_its_value_too_and_by_the_operators_own_rule() -> None:
    options = {"spark.driver.extraJavaOptions": "-Dstore.password=hunter2", "spark.cores.max": "2"}
    assert json_form(options) == {"spark.driver.extraJavaOptions": MASK, "spark.cores.max": "2"}
    own = {"spark.redaction.regex": "(?i)CORES|(?<name>secret)"}
    assert json_form(options | own) == dict.fromkeys(options | own, MASK), "a rule that Python cannot read masks all"
    own = {"spark.redaction.regex": "(?i)CORES"}
    assert json_form(options | own)["spark.cores.max"] == MASK  # type: ignore[index]
    assert json_form(options | own)["spark.driver.extraJavaOptions"] == f"-Dstore.password={MASK}"  # type: ignore[index]


@pytest.mark.parametrize(
    "name",
    ["producer.id.expiration.ms", "ssl.keystore.location", "num.io.threads", "spark.executor.memory",
     "spark.network.crypto.keyLength"],
)  # fmt: skip
def test_what_is_not_a_secret_is_shown(name: str) -> None:
    assert shown_as(name, "7") == "7"


def test_a_secret_that_was_taken_away_is_shown_as_gone() -> None:
    assert shown_as("ssl.key.password", None) is None
