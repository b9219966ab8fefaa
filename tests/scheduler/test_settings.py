from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from resnap.replay import DEFAULT_CHECK_INTERVAL_MS, DEFAULT_EXPIRATION_MS, DEFAULT_TRANSACTION_MAX_TIMEOUT_MS
from resnap.replay.scan import PRODUCERS_PER_TASK
from resnap.replay.spark.settings import processors
from resnap.scheduler.job.wiring import reading_of
from resnap.scheduler.settings.loading import load_settings
from resnap.scheduler.settings.settings import DECLARED, Settings
from resnap.storage.errors import ConfigurationError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping


def loaded(
    tmp_path: Path, flags: Mapping[str, object] | None = None, file: str | None = None, **environment: str
) -> Settings:
    if file is not None:
        (tmp_path / "resnap.toml").write_text(file)
    return load_settings(flags, environment=environment, directory=tmp_path)


def server_properties(tmp_path: Path, text: str) -> str:
    path = tmp_path / "server.properties"
    path.write_text(text)
    return str(path)


def test_flags_win_over_environment_over_file_over_server_properties_over_default(tmp_path: Path) -> None:
    name = "producer_id_expiration_ms"
    properties = server_properties(tmp_path, "producer.id.expiration.ms=4\n")
    file = "producer.id.expiration.ms = 3"
    layers: list[tuple[dict[str, object], dict[str, str], str]] = [
        ({name: 1}, {"RESNAP_PRODUCER_ID_EXPIRATION_MS": "2"}, file),
        ({}, {"RESNAP_PRODUCER_ID_EXPIRATION_MS": "2"}, file),
        ({}, {}, file),
        ({}, {}, ""),
    ]
    found = []
    for flags, environment, text in layers:
        settings = loaded(tmp_path, flags, text, RESNAP_SERVER_PROPERTIES=properties, **environment)
        found.append((settings.producer_id_expiration_ms, settings.origin(name)))
    assert found == [
        (1, "flag --producer-id-expiration-ms"),
        (2, "env RESNAP_PRODUCER_ID_EXPIRATION_MS"),
        (3, f"file {tmp_path / 'resnap.toml'}, line 1"),
        (4, f"server.properties {properties}"),
    ]
    default = loaded(tmp_path, file="")
    assert (default.producer_id_expiration_ms, default.origin(name)) == (None, "default")


@pytest.mark.parametrize(
    "spelling",
    [
        "producer.id.expiration.check.interval.ms = 1000",
        '"producer.id.expiration.check.interval.ms" = 1000',
        "producer-id-expiration-check-interval-ms = 1000",
        "producer_id_expiration_check_interval_ms = 1000",
        "[resnap]\nproducer-id-expiration-check-interval-ms = 1000",
        "resnap.producer-id-expiration-check-interval-ms = 1000",
        "[producer.id.expiration]\ncheck.interval.ms = 1000\nms = 5",
    ],
)
def test_a_file_may_spell_a_setting_as_kafka_does_or_as_the_flag_is_spelled(tmp_path: Path, spelling: str) -> None:
    assert loaded(tmp_path, file=spelling).producer_id_expiration_check_interval_ms == 1000


def test_a_file_may_use_tables(tmp_path: Path) -> None:
    settings = loaded(tmp_path, file='[s3]\nregion = "eu"\naddressing-style = "path"\n[spark]\nmaster = "local[2]"')
    assert (settings.s3().region, settings.s3().addressing_style, settings.spark().master) == ("eu", "path", "local[2]")


def test_spark_properties_of_all_layers_are_merged(tmp_path: Path) -> None:
    file = '[spark.conf]\nspark.ui.enabled = true\n"spark.cores.max" = 4\nspark.x = "file"'
    settings = loaded(
        tmp_path, {"spark_conf": ["spark.x=flag", "spark.y=a=b"]}, file, RESNAP_SPARK_CONF='{"spark.x": "env"}'
    )
    assert settings.spark().conf == {
        "spark.ui.enabled": "true",
        "spark.cores.max": "4",
        "spark.x": "flag",
        "spark.y": "a=b",
    }
    assert settings.origin("spark_conf") == (
        f"flag --spark-conf, env RESNAP_SPARK_CONF, file {tmp_path / 'resnap.toml'}, line 1"
    )


def test_paths_in_a_file_are_relative_to_the_file(tmp_path: Path) -> None:
    server_properties(tmp_path, "transaction.max.timeout.ms=1\n")
    settings = loaded(tmp_path, file='server-properties = "server.properties"\nlog.dirs = "a, /b"')
    assert settings.transaction_max_timeout_ms == 1
    assert settings.log_dirs == (tmp_path / "a", Path("/b"))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('command-config = "client.properties"', "client.properties"),
        ('tokens-file = "tokens"', "tokens"),
        ('state-dir = "state"', "state"),
        ('s3-ca-bundle = "ca.pem"', "ca.pem"),
        ('allow-sources = "logs"', "logs"),
        ('allow-destinations = ["s3://bucket", "copies"]', "copies"),
        ('encryption-private-key = { a = "a.pem" }', "a.pem"),
    ],
)
def test_whatever_names_a_path_is_relative_to_the_file(tmp_path: Path, line: str, expected: str) -> None:
    settings = loaded(tmp_path, file=line)
    value = getattr(settings, line.split(" ", maxsplit=1)[0].replace("-", "_"))
    paths = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else [value]
    assert str(tmp_path / expected) in map(str, paths)
    assert [str(path) for path in paths if "://" in str(path)] == (["s3://bucket"] if "s3:" in line else [])


def test_places_of_schedules_are_relative_to_the_file(tmp_path: Path) -> None:
    tables = [
        '{ name = "a", run = "regenerate", every = "1h", sources = ["logs", "/b"], to = "staged" }',
        '{ name = "b", run = "tier", every = "1h", sources = "logs", to = "s3://bucket/prefix" }',
        '{ name = "c", run = "regenerate", every = "1h", sources = ["logs", "s3://a"], to = "s3:/bucket" }',
    ]
    staged, shipped, wrong = loaded(tmp_path, file=f"schedules = [{', '.join(tables)}]").schedules
    assert (staged.sources, staged.to) == ((str(tmp_path / "logs"), "/b"), str(tmp_path / "staged"))
    assert (shipped.sources, shipped.to) == ((str(tmp_path / "logs"),), "s3://bucket/prefix")
    assert (wrong.sources, wrong.to) == ((str(tmp_path / "logs"), "s3://a"), "s3:/bucket")


def test_a_named_file_replaces_the_one_in_the_working_directory(tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text('output = "json"')
    assert loaded(tmp_path, {"config": other}, 'engine = "local"').engine == "spark"
    assert loaded(tmp_path, None, None, RESNAP_CONFIG=str(other)).output == "json"


def test_lists_come_with_commas_from_the_environment(tmp_path: Path) -> None:
    assert loaded(tmp_path, RESNAP_TOPIC="pay*,orders").topics == ("pay*", "orders")
    assert loaded(tmp_path, RESNAP_TOPICS="pay*").topics == ("pay*",)
    assert loaded(tmp_path, {"topics": ["a", "b"]}).topics == ("a", "b")


def test_an_empty_variable_is_not_set_and_an_unknown_one_is_reported(tmp_path: Path) -> None:
    settings = loaded(tmp_path, RESNAP_ENGINE="", RESNAP_TOPCIS="x", OTHER="y")
    assert settings.engine == "spark"
    assert settings.unknown_variables == ("RESNAP_TOPCIS",)


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("RESNAP_ENGINE", "flink", "engine (env RESNAP_ENGINE): expected 'spark' or 'local', found 'flink'"),
        ("RESNAP_HIGH_WATERMARK", "many", "high-watermark (env RESNAP_HIGH_WATERMARK): expected a valid integer"),
        ("RESNAP_HIGH_WATERMARK", "-1", "expected greater than or equal to 0"),
        ("RESNAP_HIGH_WATERMARK", "9223372036854775808", "expected less than or equal to 9223372036854775807"),
        ("RESNAP_PRODUCER_ID_EXPIRATION_MS", "7d", "producer.id.expiration.ms (env RESNAP_PRODUCER_ID_EXPIRATION_MS)"),
        ("RESNAP_MAX_REACH_BACK", "7", "expected a duration such as 7d"),
        ("RESNAP_AS_OF", "2026-01-31", "expected a time with its zone"),
        ("RESNAP_SPARK_CONF", "spark.x", "spark-conf (env RESNAP_SPARK_CONF): expected KEY=VALUE"),
        ("RESNAP_SPARK_CONF", "{", "spark-conf (env RESNAP_SPARK_CONF)"),
    ],
)
def test_a_wrong_value_is_reported_with_setting_origin_and_what_was_found(
    tmp_path: Path, variable: str, value: str, expected: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        loaded(tmp_path, **{variable: value})
    assert expected in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("producer.id.expiration.ms = true", "producer.id.expiration.ms"),
        ("threads = false", "expected another value than true or false"),
        ("split-size = true", "expected another value than true or false"),
        ("header-read-size = 9223372036854775808", "expected less than or equal to 9223372036854775807"),
        ("max-reach-back = -5", "max-reach-back (file {file}, line 1): expected a duration of 0s or more, found -5"),
        ("history-retention = -1", "expected a duration of 0s or more"),
        ("as-of = 2026-01-31", "expected a time with its zone"),
        ("as-of = 2026-01-31T12:00:00", "expected a time with its zone"),
    ],
)
def test_a_value_of_another_type_in_a_file_is_not_taken_for_what_it_is_not(
    tmp_path: Path, text: str, expected: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        loaded(tmp_path, file=text)
    assert expected.format(file=tmp_path / "resnap.toml") in str(caught.value)


def test_a_time_with_its_zone_and_a_switch_need_no_quotes_in_a_file(tmp_path: Path) -> None:
    settings = loaded(tmp_path, file="as-of = 2026-01-31T12:00:00Z\nfull = true\nmax-reach-back = 60")
    assert (settings.as_of_ms, settings.full, settings.max_reach_back_ms) == (1_769_860_800_000, True, 60_000)


def test_a_wrong_flag_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"as-of \(flag --as-of\)"):
        loaded(tmp_path, {"as_of": "yesterday"})
    with pytest.raises(UsageError, match=r"spark-conf \(flag --spark-conf\)"):
        loaded(tmp_path, {"spark_conf": ["x"]})


def test_a_refused_value_shows_no_credentials(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        loaded(tmp_path, RESNAP_ENGINE="https://me:secret@host")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("topcis = []", "there is no setting 'topcis'"),
        ("= 3", "is not TOML"),
        ('engine = "flink"', "resnap.toml"),
        ("full = 17", "full (file "),
    ],
)
def test_a_wrong_file_is_reported_by_name(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        loaded(tmp_path, file=text)
    assert expected in str(caught.value)
    assert str(tmp_path / "resnap.toml") in str(caught.value)


def test_a_misspelled_setting_gets_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        loaded(tmp_path, file="verify-crcs = true")
    assert caught.value.hint == "did you mean verify-crc?"


@pytest.mark.parametrize("place", ["s3://bucket/logs", "file:///srv/data"])
def test_a_url_is_no_log_dir_of_a_broker(tmp_path: Path, place: str) -> None:
    with pytest.raises(ConfigurationError, match="expected the path of a directory, found the URL"):
        loaded(tmp_path, file=f'log.dirs = "/srv/data,{place}"')


@pytest.mark.parametrize("name", ["config", "server_properties"])
def test_a_named_file_that_is_not_there_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere: no such file or directory"):
        loaded(tmp_path, {name: tmp_path / "nowhere"})


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("version=1\ncluster.id=abc\nnode.id=1\n", "meta.properties"),
        ("bootstrap.servers=one:9092\n", "a client's configuration"),
        ("log4j.rootLogger=INFO\n", "log4j"),
    ],
)
def test_another_file_is_not_taken_for_server_properties(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(ConfigurationError, match=what):
        loaded(tmp_path, {"server_properties": server_properties(tmp_path, text)})
    loaded(tmp_path, {"server_properties": server_properties(tmp_path, f"log.dirs=/srv\n{text}")})


def test_server_properties_are_read_as_kafka_writes_them(tmp_path: Path) -> None:
    text = "# one\nlog.dirs = /data/1,/data/2\nlog.dir=/ignored\ntransactional.id.expiration.ms:172800000\n"
    settings = loaded(tmp_path, {"server_properties": server_properties(tmp_path, text)})
    assert settings.log_dirs == (Path("/data/1"), Path("/data/2"))
    assert settings.transactional_id_expiration_ms == 172_800_000


def test_server_properties_that_java_refuses_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"server\.properties: property escape"):
        loaded(tmp_path, {"server_properties": server_properties(tmp_path, "log.dirs=\\u12")})


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, 604_800_000),
        ({"producer_id_expiration_ms": 86_400_000}, 86_400_000),
        ({"transactional_id_expiration_ms": 172_800_000}, 604_800_000),
        ({"transactional_id_expiration_ms": 2_592_000_000}, 2_592_000_000),
        ({"producer_id_expiration_ms": 1, "transactional_id_expiration_ms": 2_592_000_000}, 1),
    ],
)
def test_an_unknown_expiration_is_taken_too_long_rather_than_too_short(values: dict[str, Any], expected: int) -> None:
    settings = Settings(**values)
    assert settings.expiration_ms == expected
    is_known = "producer_id_expiration_ms" in values
    assert (settings.expiration_note is None) == is_known


def test_settings_are_frozen_and_refuse_what_they_do_not_know() -> None:
    with pytest.raises(ValidationError):
        Settings().engine = "local"  # type: ignore[misc]
    with pytest.raises(ValidationError):
        Settings(topcis=())


def test_values_below_the_settings_are_plain() -> None:
    settings = Settings(max_reach_back=timedelta(days=1))
    assert settings.max_reach_back_ms == 86_400_000


def test_defaults_are_those_of_the_replay() -> None:
    settings = Settings()
    assert settings.expiration_ms == DEFAULT_EXPIRATION_MS
    assert settings.producer_id_expiration_check_interval_ms == DEFAULT_CHECK_INTERVAL_MS
    assert settings.transaction_max_timeout_ms == DEFAULT_TRANSACTION_MAX_TIMEOUT_MS


def test_kafkas_settings_are_shown_under_kafkas_names() -> None:
    assert DECLARED["log_dirs"].key == "log.dirs"
    assert DECLARED["producer_id_expiration_ms"].key == "producer.id.expiration.ms"
    assert DECLARED["topics"].key == "topic"


def test_how_segments_are_read_is_set_by_flag_environment_or_file(tmp_path: Path) -> None:
    settings = loaded(tmp_path, {"threads": 3}, 'split-size = "256MiB"', RESNAP_HEADER_READ_SIZE="64KiB")
    reading = reading_of(settings)
    assert (reading.threads, reading.split_bytes, reading.header_read_bytes) == (3, 256 << 20, 64 << 10)
    assert reading.producers_per_task == PRODUCERS_PER_TASK
    assert settings.origin("split_size").startswith("file ")


def test_the_local_engine_takes_all_processors_by_default(tmp_path: Path) -> None:
    assert reading_of(loaded(tmp_path)).threads == processors()


@pytest.mark.parametrize(
    "flags", [{"split_size": "0"}, {"split_size": "1MB"}, {"threads": 0}, {"producers_per_task": 0}]
)
def test_a_size_or_count_that_cannot_be_is_refused_by_its_flag(tmp_path: Path, flags: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=f"flag --{next(iter(flags)).replace('_', '-')}"):
        loaded(tmp_path, flags)


def test_a_wrong_key_of_a_schedule_is_named_with_its_place(tmp_path: Path) -> None:
    table = '[[schedules]]\nname = "a"\nrun = "scan"\nevery = "1h"\n'
    (tmp_path / "resnap.toml").write_text(f'{table}{table.replace(chr(34) + "a", chr(34) + "b")}evry = "2h"\n')
    with pytest.raises(
        ConfigurationError, match=r"schedules\[2\]\.evry \(file .*, line 9\): there is no such key$"
    ) as caught:
        load_settings({}, environment={}, directory=tmp_path)
    assert caught.value.hint == "did you mean every?"


@pytest.mark.parametrize(
    ("text", "told", "hint"),
    [
        ("\n[s3]\nregoin = 'eu'", "line 3: there is no setting 's3_regoin'", "did you mean s3-region?"),
        ("threads = 3\nto = 'x'", "line 2: there is no setting 'to'", "it is a key of tables [[schedules]]"),
        ("[schedules]\ncron = 'x'", "there is no setting 'schedules_cron'", "it is a key of tables [[schedules]]"),
        ("xyzzy = 3", "line 1: there is no setting 'xyzzy'", "`resnap config show` lists all settings"),
        ("# engine = 1\n'engine' = 'flink'", "engine (file {}, line 2): expected", None),
        ("spark-conf.x = '1'\nresnap.threads = 'x'", "threads (file {}, line 2): ", None),
        ("[producer.id.expiration]\nms = 'x'", "producer.id.expiration.ms (file {}, line 2): ", None),
        ("[[schedules]]\n[[schedules]] # two\n[schedules.settings]\n", "schedules[1].name (file {}, line 1)", None),
        (
            '[[schedules]]\nname = "a"\nrun = "scan"\nevery = "1h"\ndestination = "x"',
            "schedules[1].destination (file {}, line 5): there is no such key",
            "possible: cron, every, name, run, settings, sources, timezone, to, topics",
        ),
    ],
)
def test_what_is_wrong_in_a_file_is_told_with_its_line_and_what_was_meant(
    tmp_path: Path, text: str, told: str, hint: str | None
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        loaded(tmp_path, file=text)
    assert told.format(tmp_path / "resnap.toml") in str(caught.value)
    assert hint in (None, caught.value.hint)


def test_a_byte_order_mark_before_a_file_is_not_of_it(tmp_path: Path) -> None:
    assert loaded(tmp_path, file="\ufeffthreads = 3").threads == 3


def test_client_properties_without_a_cluster_are_refused_where_the_command_names_them(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--command-config is given, but no cluster"):
        loaded(tmp_path, {"command_config": "client.properties"})
    assert loaded(tmp_path, RESNAP_COMMAND_CONFIG="client.properties").bootstrap_server is None
