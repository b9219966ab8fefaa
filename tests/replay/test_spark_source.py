from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual
from pyspark.sql.pandas.types import from_arrow_schema

from resnap.replay.scan.header_scan import SegmentRange
from resnap.replay.spark.header_rows import LogSegment, read_header_rows
from resnap.replay.spark.jvm import find_java
from resnap.replay.spark.record_rows import read_record_rows
from resnap.replay.spark.session import spark_session
from resnap.replay.spark.settings import PROJECT_ROOT, SparkSettings
from resnap.replay.spark.source import (
    KafkaLogSource,
    Pruning,
    find_segments,
    pack,
    paths_of,
    register_kafka_log,
    schema_of,
)
from resnap.scheduler.cli import run as scheduler_run
from resnap.storage.errors import ConfigurationError, FormatError, StoreAccessError, UsageError, VerificationError
from resnap.storage.sources.files import PLAIN
from tests.builders import a_batch, a_partition
from tests.cases import mostly_slow
from tests.replay.plain_rows import Row, plain_rows
from tests.scheduler.mirrors import mirror
from tests.strategies import DataEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mypy_boto3_s3 import S3Client
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import Filter

    from tests.fixture_sets import FixtureSet

ANOTHER_PROGRAM = """
import json, sys
from collections import Counter
from pyspark.sql import SparkSession
from resnap.replay.spark.source import register_kafka_log

session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
register_kafka_log(session)
rows = session.read.format("kafka_log").load(sys.argv[1]).collect()
print(json.dumps(Counter(row["topic"] for row in rows)))
"""


@pytest.fixture(scope="module")
def session() -> Iterator[SparkSession]:
    """Give a session that knows the format, and is silent about tasks that fail."""
    with spark_session(SparkSettings(master="local[2]", log_level="OFF"), os.environ) as session:
        register_kafka_log(session)
        yield session


@pytest.fixture
def data(fixture_set: Callable[[str], FixtureSet]) -> Path:
    """Give the log dir of a broker with messages of every magic, and transactions."""
    return fixture_set("kafka-2.7.2").data


def headers(session: SparkSession, *paths: Path, topic: str | None = None) -> DataFrame:
    """Load ``paths`` as a user would: one as a string, several as a list."""
    reader = session.read.format("kafka_log")
    if topic is not None:
        reader = reader.option("topic", topic)
    return reader.load(str(paths[0]) if len(paths) == 1 else [str(path) for path in paths])


def collected(frame: DataFrame) -> list[Row]:
    """Return all rows by topic, partition, segment and position, as ``plain_rows`` gives those of sorted files."""
    rows = [row.asDict() for row in frame.collect()]
    return sorted(rows, key=lambda row: [row[name] for name in ("topic", "partition", "segment", "position")])


@pytest.mark.slow
@pytest.mark.spark
def test_a_log_dir_gives_a_row_for_every_batch_and_message(session: SparkSession, data: Path) -> None:
    expected = plain_rows(sorted(data.glob("*/*.log")))
    assert {row["magic"] for row in expected} == {0, 1, 2}
    assert collected(headers(session, data)) == expected


@pytest.mark.slow
@pytest.mark.spark
def test_batches_are_counted_by_producer_in_sql(session: SparkSession, data: Path) -> None:
    headers(session, data).createOrReplaceTempView("batches")
    query = "SELECT producerId, count(*) AS batches, sum(recordsCount) AS records FROM batches GROUP BY producerId"
    found = {row["producerId"]: (row["batches"], row["records"]) for row in session.sql(query).collect()}
    rows = plain_rows(data.glob("*/*.log"))
    batches, records = Counter(row["producerId"] for row in rows), Counter[object]()
    for row in rows:
        records[row["producerId"]] += int(str(row["recordsCount"] or 0))
    assert len(found) > 20
    assert found == {producer: (batches[producer], records[producer]) for producer in batches}


@pytest.mark.slow
@pytest.mark.spark
def test_markers_are_found_by_what_they_decided(session: SparkSession, data: Path) -> None:
    markers = headers(session, data).where("isControl").groupBy("controlType", "coordinatorEpoch").count().collect()
    expected = Counter(
        (row["controlType"], row["coordinatorEpoch"]) for row in plain_rows(data.glob("*/*.log")) if row["isControl"]
    )
    assert {control for control, _ in expected} == {"COMMIT", "ABORT"}
    assert {(row["controlType"], row["coordinatorEpoch"]): row["count"] for row in markers} == expected


@pytest.mark.slow
@pytest.mark.spark
def test_a_view_is_made_in_sql_alone_and_narrowed_by_topic(session: SparkSession, data: Path) -> None:
    session.sql(f"CREATE OR REPLACE TEMPORARY VIEW paid USING kafka_log OPTIONS (path '{data}', topic 'pay*')")
    expected = plain_rows(sorted(data.glob("payments-*/*.log")))
    assert collected(session.sql("SELECT * FROM paid")) == expected
    assert session.sql("SELECT DISTINCT topic FROM paid").collect() == [("payments",)]


@pytest.mark.slow
@pytest.mark.spark
def test_segments_that_a_query_excludes_are_not_read_and_the_answer_is_the_same(
    session: SparkSession, data: Path, writable_copy: Callable[[Path], Path]
) -> None:
    everything = plain_rows(sorted(data.glob("*/*.log")))
    copy = writable_copy(data)
    newest = max(row["maxTimestamp"] for row in everything if row["topic"] == "payments")
    for where, passes in (
        ("topic = 'payments' AND partition IN (0, 7)", lambda row: (row["topic"], row["partition"]) == ("payments", 0)),
        ("partition = 1 AND baseOffset >= 300 AND lastOffset < 600",
         lambda row: row["partition"] == 1 and row["baseOffset"] is not None
         and row["baseOffset"] >= 300 and row["lastOffset"] < 600),
        ("topic LIKE 'pay%' AND segment > 400", lambda row: row["topic"].startswith("pay") and row["segment"] > 400),
        ("topic = 'payments' AND partition IN (0, NULL)",
         lambda row: (row["topic"], row["partition"]) == ("payments", 0)),
        (f"maxTimestamp >= {newest}", lambda row: (row["maxTimestamp"] or 0) >= newest),
        ("producerId = 4 OR segment = 0", lambda row: row["producerId"] == 4 or row["segment"] == 0),
    ):  # fmt: skip
        wanted = [row for row in everything if passes(row)]
        assert wanted
        assert collected(headers(session, copy).where(where)) == wanted
    for log in copy.glob("*/*.log"):
        if log.parent.name != "payments-0" or log.stem > f"{400:020}":
            log.write_bytes(b"no batch at all" * 10)
    assert headers(session, copy).where("topic = 'payments' AND partition = 0 AND lastOffset < 300").count() > 0
    with pytest.raises(PySparkException):
        headers(session, copy).where("topic = 'payments'").count()


@pytest.mark.slow
@pytest.mark.spark
def test_several_paths_give_each_segment_once(session: SparkSession, data: Path) -> None:
    log = max(data.glob("orders-0/*.log"))
    frame = headers(session, log, data / "payments-1", data / "payments-1", min(data.glob("payments-1/*.log")))
    assert collected(frame) == plain_rows([log, *sorted(data.glob("payments-1/*.log"))])


@pytest.mark.slow
@pytest.mark.spark
def test_records_are_rows_if_the_option_says_so(session: SparkSession, data: Path) -> None:
    payments = data / "payments-0"
    records = session.read.format("kafka_log").option("records", "true").load(str(payments))
    expected = sum(row["recordsCount"] for row in rows_of(payments) if not row["isControl"])
    assert records.count() == expected > 0
    (first,) = records.where("offset = 0").collect()
    first_value = next(read_record_rows(find_segments([payments])[0]))["value"][0].as_py()
    assert first.asDict() == {
        "topic": "payments", "partition": 0, "segment": 0, "position": 0, "offset": 0, "timestamp": 1795225156110,
        "key": bytearray(b"k7"), "valueSize": 24, "headersCount": 0, "value": bytearray(first_value), "headers": [],
        "leaderEpoch": 0, "committed": True,
    }  # fmt: skip
    with pytest.raises(PySparkException, match="the option records is 'yes'"):
        session.read.format("kafka_log").option("records", "yes").load(str(payments))


@pytest.mark.slow
@pytest.mark.spark
def test_only_the_columns_of_a_given_schema_are_made(session: SparkSession, data: Path) -> None:
    payments = data / "payments-0"
    session.sql(
        "CREATE OR REPLACE TEMPORARY VIEW some (committed BOOLEAN, offset BIGINT) USING kafka_log"
        f" OPTIONS (path '{payments}', records 'true')"
    )
    found = session.sql("SELECT * FROM some ORDER BY offset").collect()
    columns = ("committed", "offset")
    expected = [row for segment in find_segments([payments]) for batch in read_record_rows(segment, PLAIN, columns)
                for row in batch.to_pylist()]  # fmt: skip
    assert [row.asDict() for row in found] == expected
    reader = session.read.format("kafka_log").option("records", "true")
    with pytest.raises(PySparkException, match="there is no column offset of the type int"):
        reader.schema("offset INT").load(str(payments)).count()
    batches = session.read.format("kafka_log").schema("producerId BIGINT").load(str(payments))
    assert batches.columns == ["producerId"]
    assert batches.count() == len(rows_of(payments))


@pytest.mark.slow
@pytest.mark.spark
def test_damage_that_is_skipped_is_named_in_a_column(
    session: SparkSession, data: Path, writable_copy: Callable[[Path], Path]
) -> None:
    partition = writable_copy(data / "payments-0")
    first = min(partition.glob("*.log"))
    content = bytearray(first.read_bytes())
    content[70] ^= 1
    first.write_bytes(content)
    records = session.read.format("kafka_log").option("records", "true")
    with pytest.raises(PySparkException, match="record batch checksum"):
        records.load(str(partition)).count()
    rows = records.option("onDamage", "skip").load(str(partition))
    (named,) = rows.where("damage IS NOT NULL").collect()
    assert (named["position"], named["offset"]) == (0, None)
    assert f"{first}: record batch checksum" in named["damage"]
    assert rows.where("damage IS NULL").count() == sum(
        row["recordsCount"]
        for row in rows_of(partition)
        if not row["isControl"] and (row["segment"], row["position"]) != (0, 0)
    )
    content[16] = 9
    first.write_bytes(content)
    batches = session.read.format("kafka_log").option("onDamage", "skip").load(str(partition))
    (named,) = batches.where("damage IS NOT NULL").collect()
    assert "record batch magic" in named["damage"]
    with pytest.raises(PySparkException, match="the option onDamage is 'ignore'"):
        session.read.format("kafka_log").option("onDamage", "ignore").load(str(partition))


@pytest.mark.slow
@pytest.mark.spark
def test_records_are_written_as_parquet_and_a_later_run_adds_what_is_new(
    session: SparkSession, data: Path, tmp_path: Path
) -> None:
    log, table = tmp_path / "data" / "payments-0", tmp_path / "table"
    log.mkdir(parents=True)
    *closed, active = sorted((data / "payments-0").glob("*.log"))
    for path in closed:
        shutil.copy(path, log)
    records = session.read.format("kafka_log").option("records", "true")
    records.load(str(log)).where("committed").write.parquet(str(table))
    before = session.read.parquet(str(table)).count()
    shutil.copy(active, log)
    place = ["topic", "partition", "offset"]
    for _ in range(2):
        written = session.read.parquet(str(table)).select(place)
        new = records.load(str(log)).where("committed").join(written, place, "left_anti")
        new.write.mode("append").parquet(str(table))
    expected = [row for one in find_segments([log]) for batch in read_record_rows(one) for row in batch.to_pylist()]
    found = session.read.parquet(str(table)).orderBy("offset").collect()
    assert [(row["offset"], bytes(row["value"])) for row in found] == [
        (row["offset"], row["value"]) for row in expected if row["committed"]
    ]
    assert len(found) > before > 0


@pytest.mark.slow
@pytest.mark.spark
def test_a_glob_that_matches_no_topic_gives_no_rows(session: SparkSession, data: Path) -> None:
    assert headers(session, data, topic="pay").count() == 0


@pytest.mark.slow
@pytest.mark.spark
def test_damage_fails_the_query_with_file_and_position(
    session: SparkSession, data: Path, writable_copy: Callable[[Path], Path]
) -> None:
    log = max(writable_copy(data / "payments-0").glob("*.log"))
    content = bytearray(log.read_bytes())
    content[16] = 9
    log.write_bytes(content)
    with pytest.raises(PySparkException) as caught:
        headers(session, log.parent).groupBy("producerId").count().collect()
    assert f"{log}: record batch magic at byte 16: expected 0, 1 or 2, found 9" in str(caught.value)


@pytest.mark.slow
@pytest.mark.spark
def test_a_failed_query_names_the_next_step(
    session: SparkSession, data: Path, writable_copy: Callable[[Path], Path]
) -> None:
    log = min(writable_copy(data / "payments-0").glob("*.log"))
    os.truncate(log, log.stat().st_size - 1)
    with pytest.raises(PySparkException, match="hint: the segment is cut short or damaged"):
        headers(session, log.parent).count()
    with pytest.raises(PySparkException, match="hint: check the spelling"):
        headers(session, log.parent / "nowhere").count()
    with pytest.raises(PySparkException, match=r"hint: give one, as in spark\.read"):
        session.read.format("kafka_log").load().count()


@pytest.mark.slow
@pytest.mark.spark
def test_a_session_of_another_program_learns_the_format(data: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(ANOTHER_PROGRAM)
    java = find_java({}, scratch=tmp_path)
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TMPDIR": str(tmp_path),
                   "JAVA_HOME": str(java.home), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable,
                   "PYTHONPATH": str(PROJECT_ROOT)}  # fmt: skip
    done = subprocess.run([sys.executable, tmp_path / "script.py", data], cwd=tmp_path, env=environment,
                          capture_output=True, text=True, check=False, timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == Counter(row["topic"] for row in plain_rows(data.glob("*/*.log")))


def test_segments_that_are_too_old_by_their_time_index_are_excluded(data: Path) -> None:
    def bases(*filters: Filter) -> list[int]:
        return [segment.range.base_offset for segment in find_segments([data / "payments-0"], None, Pruning(filters))]

    def newest(base: int) -> int:
        return max(int(str(row["maxTimestamp"])) for row in plain_rows([data / "payments-0" / f"{base:020}.log"]))

    every = bases()
    assert bases(GreaterThanOrEqual(("maxTimestamp",), newest(every[5]))) == every[5:]
    assert bases(GreaterThan(("maxTimestamp",), newest(every[5]))) == every[6:]
    assert bases(LessThan(("maxTimestamp",), newest(every[5]))) == every


def test_paths_come_as_spark_passes_them() -> None:
    assert paths_of({"path": "/a,b"}) == ("/a,b",)
    assert paths_of({"paths": '["/a", "/b c"]'}) == ("/a", "/b c")
    with pytest.raises(UsageError, match="kafka_log: no path"):
        paths_of({"topic": "payments"})


def rows_of(*sources: str | Path, filters: tuple[Filter, ...] = ()) -> list[dict[str, Any]]:
    found = find_segments(sources, pruning=Pruning(filters))
    return [row for segment in found for batch in read_header_rows(segment) for row in batch.to_pylist()]


def test_urls_of_directories_and_of_what_was_shipped_are_sources(data: Path, tmp_path: Path) -> None:
    rows = rows_of(data / "orders-0")
    assert rows_of((data / "orders-0").as_uri()) == rows
    assert rows_of(f"file://{min((data / 'orders-0').glob('*.log'))}")[0] == rows[0]
    shipped = tmp_path / "store"
    run = ("tier", data / "orders-0", "--to", shipped.as_uri(), "--engine", "local", "--state-dir", "none", "--quiet")
    assert scheduler_run([str(word) for word in run]) == 0
    closed = [row for row in rows if row["segment"] != max(row["segment"] for row in rows)]  # type: ignore[type-var]
    assert rows_of(shipped.as_uri()) == closed
    with pytest.raises(UsageError, match="unknown form"):
        rows_of("hdfs://namenode/data")


@pytest.mark.parametrize(
    ("name", "inside"),
    [("kafka-4.4.0-tiered", ""), ("kafka-3.9.1-aiven-plain", "/tiered"), ("kafka-3.9.1-aiven-zstd", "/tiered")],
)
def test_what_brokers_tiered_is_a_source(fixture_set: Callable[[str], FixtureSet], name: str, inside: str) -> None:
    tiered = fixture_set(name)
    rows = rows_of(f"{tiered.remote.as_uri()}{inside}")
    stored = {(row["topic"], row["partition"], row["segment"]) for row in rows}
    local = rows_of(tiered.data)
    both = [row for row in local if (row["topic"], row["partition"], row["segment"]) in stored]
    there = {(row["topic"], row["partition"], row["segment"]) for row in both}
    assert both
    assert [row for row in rows if (row["topic"], row["partition"], row["segment"]) in there] == both


def test_encrypted_segments_are_read_with_the_keys_that_an_option_names(
    fixture_set: Callable[[str], FixtureSet],
) -> None:
    tiered = fixture_set("kafka-3.9.1-aiven-encrypted")
    options = {"path": f"{tiered.remote.as_uri()}/tiered"}
    keyed = options | {"encryption-private-key": f"key1={tiered.root / 'keys' / 'private.pem'}"}

    def rows_under(given: dict[str, str], *filters: Filter) -> list[dict[str, Any]]:
        reader = KafkaLogSource(given).reader(from_arrow_schema(schema_of(given)))  # type: ignore[no-untyped-call]
        reader.pushFilters([*filters])
        sent = pickle.loads(pickle.dumps(reader))  # noqa: S301 - as to executors
        return [row for task in sent.partitions() for batch in sent.read(task) for row in batch.to_pylist()]

    rows, local = rows_under(keyed), rows_of(tiered.data)
    offsets = {(row["topic"], row["partition"], row["baseOffset"]) for row in rows}
    both = [row for row in local if (row["topic"], row["partition"], row["baseOffset"]) in offsets]
    assert both
    assert [row for row in rows if row in both] == both
    newest = max(row["maxTimestamp"] for row in rows)
    late = rows_under(keyed, GreaterThanOrEqual(("maxTimestamp",), newest))
    assert newest in {row["maxTimestamp"] for row in late}
    assert len(late) < len(rows)
    with pytest.raises(ConfigurationError, match="the given private keys are: none"):
        rows_under(options)
    for wrong, error in (("key1", UsageError), ("key1=/missing.pem", ConfigurationError)):
        with pytest.raises(error):
            rows_under(options | {"encryption-private-key": wrong})


FILTERED: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: lambda found, wanted: found == wanted,
    In: lambda found, wanted: found in wanted,
    GreaterThan: lambda found, wanted: found is not None and found > wanted,
    GreaterThanOrEqual: lambda found, wanted: found is not None and found >= wanted,
    LessThan: lambda found, wanted: found is not None and found < wanted,
    LessThanOrEqual: lambda found, wanted: found is not None and found <= wanted,
}


def each_filter_reads_less_and_finds_the_same(url: str) -> None:
    """Compare rows read under filters of all kinds with all rows: none that passes is excluded, and some are."""
    everything = rows_of(url)
    row = everything[len(everything) // 2]
    for filters in (
        (EqualTo(("topic",), row["topic"]), EqualTo(("partition",), row["partition"])),
        (In(("topic",), (row["topic"], None)), In(("segment",), (row["segment"], 5, None))),
        (GreaterThanOrEqual(("baseOffset",), row["baseOffset"]), LessThan(("lastOffset",), row["lastOffset"] + 9)),
        (EqualTo(("lastOffset",), row["lastOffset"]), LessThanOrEqual(("partition",), row["partition"])),
        (GreaterThan(("maxTimestamp",), max(one["maxTimestamp"] or 0 for one in everything) - 1),),
    ):
        read = rows_of(url, filters=filters)
        wanted, found = (
            [one for one in rows if all(FILTERED[type(by)](one[by.attribute[0]], by.value) for by in filters)]
            for rows in (everything, read)
        )
        assert found == wanted != [], filters
        assert len(read) < len(everything), filters


@pytest.fixture
def bucket_url(s3_bucket: str, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in {"AWS_ACCESS_KEY_ID": "testaccess", "AWS_SECRET_ACCESS_KEY": "testsecret123",
                        "AWS_ENDPOINT_URL": s3_endpoint, "AWS_REGION": "us-east-1",
                        "AWS_DEFAULT_REGION": "us-east-1"}.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    return f"s3://{s3_bucket}"


@pytest.mark.s3
@pytest.mark.parametrize(
    "name", mostly_slow(["flat", "kafka-4.4.0-tiered", "kafka-3.9.1-aiven-plain", "kafka-3.9.1-aiven-zstd"], "flat")
)
def test_filters_leave_out_segments_of_what_was_tiered_in_any_layout_and_no_row_that_passes(
    name: str, fixture_set: Callable[[str], FixtureSet], tmp_path: Path, s3_client: S3Client, bucket_url: str
) -> None:
    store = tmp_path / "store"
    if name == "flat":
        data = fixture_set("kafka-2.7.2").data
        run = ("tier", data, "--to", store.as_uri(), "--engine", "local", "--state-dir", "none", "--quiet")
        assert scheduler_run([str(word) for word in run]) in {0, 3}
    else:
        remote = fixture_set(name).remote
        store = remote / "tiered" if "aiven" in name else remote
    mirror(s3_client, bucket_url.removeprefix("s3://"), shutil.copytree(store, tmp_path / "copy"), "some/tiered")
    each_filter_reads_less_and_finds_the_same(store.as_uri())
    each_filter_reads_less_and_finds_the_same(f"{bucket_url}/some/tiered")


@pytest.mark.s3
def test_a_bucket_is_a_source(data: Path, s3_client: S3Client, s3_bucket: str, bucket_url: str) -> None:
    assert bucket_url
    for path in (data / "orders-0").iterdir():
        s3_client.put_object(Bucket=s3_bucket, Key=f"mirror/orders-0/{path.name}", Body=path.read_bytes())
    assert rows_of(f"s3://{s3_bucket}/mirror") == rows_of(data / "orders-0")


@pytest.mark.parametrize(("name", "inside"), [("kafka-4.4.0-tiered", ""), ("kafka-3.9.1-aiven-plain", "/tiered")])
def test_a_log_dir_and_what_was_tiered_of_it_are_read_as_one_log(
    fixture_set: Callable[[str], FixtureSet], name: str, inside: str, tmp_path: Path
) -> None:
    tiered = fixture_set(name)
    remote, data = f"{tiered.remote.as_uri()}{inside}", shutil.copytree(tiered.data, tmp_path / "data")
    whole = find_segments([data / "payments-0"])
    for segment in whole[: len(whole) // 2]:
        Path(segment.range.locator).unlink()
    joined = find_segments([data / "payments-0"], remote=remote)
    assert [one.range.base_offset for one in joined] == [one.range.base_offset for one in whole]
    assert {one.range.locator.startswith(str(data)) for one in joined} == {True, False}
    assert {tuple(one.log) for one in joined} == {tuple(one.range for one in joined)}
    with pytest.raises(UsageError, match="one file"):
        find_segments([min((data / "payments-0").glob("*.log"))], remote=remote)
    other = fixture_set("kafka-3.9.1-tiered").data / "payments-0"
    with pytest.raises((UsageError, VerificationError), match=r"of the topic with id|of the cluster"):
        find_segments([other], remote=remote)


def test_a_lone_file_ends_where_its_neighbour_begins(tmp_path: Path) -> None:
    partition = a_partition(tmp_path, [[DataEvent(producer_id=1, records=4)], [DataEvent(producer_id=1)]])
    first, last = sorted(partition.glob("*.log"))
    (found,) = find_segments([first])
    assert (found.topic, found.partition, found.range.next_base_offset) == ("payments", 0, 4)
    (found,) = find_segments([last])
    assert (found.range.base_offset, found.range.next_base_offset) == (4, None)


def test_a_file_outside_of_a_partitions_directory_belongs_to_no_topic(tmp_path: Path) -> None:
    log = tmp_path / "00000000000000000007.log"
    log.write_bytes(a_batch(offset=7))
    (found,) = find_segments([log])
    assert (found.topic, found.partition, found.range.base_offset) == (None, None, 7)
    assert find_segments([log], topic="payments") == []


@pytest.mark.parametrize("name", ["server.log", "00000000000000000007.log"])
def test_a_path_that_is_not_a_segment_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no base offset" if name == "server.log" else "does not exist"):
        find_segments([tmp_path / name])
    with pytest.raises(UsageError, match="neither a Kafka log dir nor"):
        find_segments([tmp_path])


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("file:///missing/place", "/missing: no such directory"),
        ("file:///missing/00000000000000000007.log", "does not exist"),
        ("s3://b", "'b' is not the name of a bucket"),
        ("s4://bucket/place", "unknown form"),
    ],
)
def test_a_url_that_leads_nowhere_is_refused_by_what_is_wrong_with_it(url: str, said: str) -> None:
    with pytest.raises((UsageError, StoreAccessError), match=said) as refused:
        find_segments([url])
    assert os.getcwd() not in str(refused.value), "it was taken for a path"  # noqa: PTH109


def test_a_partition_that_cannot_be_listed_is_not_skipped(data: Path, tmp_path: Path) -> None:
    for name in ("payments-0", "orders-0"):
        shutil.copytree(data / name, tmp_path / name)
    (tmp_path / "orders-0" / "partition.metadata").write_text("version: 0\n")
    with pytest.raises(FormatError, match=r"partition\.metadata"):
        find_segments([tmp_path])
    assert {segment.topic for segment in find_segments([tmp_path], topic="payments")} == {"payments"}


def test_a_damaged_checkpoint_hides_no_batches(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data / "payments-0", tmp_path / "payments-0")
    (tmp_path / "replication-offset-checkpoint").write_text("no checkpoint\n")
    assert len(find_segments([tmp_path])) == len([*data.glob("payments-0/*.log")])


def test_a_task_takes_neighbours_until_it_has_enough() -> None:
    sizes = [10, 60, 30, 200, 1, 300, 0, 99]
    segments = [
        LogSegment(
            topic="t", partition=0, size_bytes=size,
            range=SegmentRange(locator=str(number), base_offset=number, next_base_offset=None),
        )
        for number, size in enumerate(sizes)
    ]  # fmt: skip
    tasks = list(pack(segments, 100))
    assert [[segment.size_bytes for segment in task] for task in tasks] == [[10, 60, 30], [200], [1, 300], [0, 99]]
    assert list(pack([], 100)) == []
