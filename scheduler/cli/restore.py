"""The command that gets partitions back from a store: restore."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from resnap.scheduler.answers.rendering import Answer, Column, Row, human_bytes, human_count
from resnap.scheduler.cli.failures import OK
from resnap.scheduler.cli.flags import ENGINE, REPLAY, STORE, TOPIC, WRITE
from resnap.scheduler.cli.invocation import Invocation
from resnap.scheduler.cli.options import with_settings

if TYPE_CHECKING:
    from resnap.scheduler.use_cases.restoring import RestoredPartition, RestoreReport


_NO_TOPIC_ID = (
    "shipped before the id of its topic was known, so without partition.metadata: a broker with ZooKeeper makes that, "
    "one without sets the directory aside as stray; for that one give --topic-id"
)


@with_settings(TOPIC, REPLAY, ENGINE, WRITE, STORE)
def restore(
    run: Invocation,
    url: Annotated[
        str, typer.Argument(metavar="URL", help="The store that `resnap tier --to` shipped to, or a part of it.")
    ],
    into: Annotated[
        Path, typer.Option("--into", metavar="LOG_DIR", help="The log dir of a stopped broker, or a new directory.")
    ],
    topic_id: Annotated[
        list[str] | None,
        typer.Option(
            "--topic-id",
            metavar="TOPIC=ID",
            help="Id of a topic, if it was not shipped or has changed since; or which of several topics of that name.",
        ),
    ] = None,
) -> int:
    """Make partition directories of what was shipped, which a broker opens: logs, indexes, snapshots, leader epochs.

    Each is whole and compared with its manifests before it has its name; what is there already is never touched.
    """
    from resnap.scheduler.use_cases.restored_snapshots import SnapshotRepair
    from resnap.scheduler.use_cases.restoring import RestoreOrder, Restoring
    from resnap.scheduler.use_cases.sources import Scope
    from resnap.storage.sources.files import Sources

    scope = Scope(sources=(url,), topics=run.settings.topics)
    order = RestoreOrder(scope=scope, log_dir=into, topic_ids=dict(map(_topic_id, topic_id or ())))
    service = run.service(replays=False)
    sources = Sources(s3=run.settings.s3(), keys=run.settings.keys())
    restoring = Restoring(sources=sources, repair=SnapshotRepair(service))
    with run.progress("restore") as (progress,):
        report = restoring.restore(order, progress, dry_run=run.settings.dry_run)
    _answer(run, report)
    return OK


def _topic_id(text: str) -> tuple[str, str]:
    """Return the topic and its id."""
    from resnap.storage.errors import UsageError
    from resnap.storage.log.properties import is_topic_id

    topic, _, topic_id = text.partition("=")
    if not topic or not is_topic_id(topic_id):
        raise UsageError(f"--topic-id {text}: expected TOPIC=ID, the id in 22 characters of base64url")
    return topic, topic_id


def _answer(run: Invocation, report: "RestoreReport") -> None:
    from resnap.tiering.keeping.restorer import Restored

    done = [one for one in report.partitions if one.outcome is Restored.RESTORED]
    total = {
        "dryRun": run.settings.dry_run,
        "restored": len(done),
        "alreadyThere": sum(one.outcome is Restored.ALREADY_THERE for one in report.partitions),
        "segments": sum(one.restoration.segments for one in done),
        "bytes": sum(one.restoration.size_bytes for one in done),
    }
    run.answer(
        Answer(
            name="partitions",
            kind="partition",
            rows=[_row(one) for one in report.partitions],
            columns=[
                Column(key="topic", title="TOPIC"),
                Column(key="partition", title="PARTITION", right=True),
                Column(key="startOffset", title="START", right=True),
                Column(key="endOffset", title="END", right=True),
                Column(key="segments", title="SEGMENTS", right=True),
                Column(key="bytes", title="BYTES", right=True, show=lambda value: human_bytes(int(str(value)))),
                Column(key="outcome", title="OUTCOME"),
            ],
            tail=lambda: total,
            closing=lambda: [_closing(run, total)],
        )
    )
    run.partly_done = bool(done) and not run.settings.dry_run
    for one in done:
        if one.restoration.topic_id is None:
            run.warn(f"{one.restoration.topic_partition}: {_NO_TOPIC_ID}")
        for text in _open_transactions(one):
            run.warn(text)
    for error in report.errors:
        run.error(error)


def _open_transactions(one: "RestoredPartition") -> Iterator[str]:
    """Yield what to do about each transaction that is open at the end of what was shipped."""
    topic, partition = one.restoration.topic_partition
    for entry in one.restoration.open_transactions:
        first = entry.current_txn_first_offset
        yield (
            f"{topic}-{partition}: producer {entry.producer_id} (epoch {entry.producer_epoch}) has a transaction open"
            f" since offset {first}, and its end was not shipped: consumers with read_committed stop there, and the"
            " producer's next commit would commit these records, too. End it before the producer comes back:"
            f" kafka-transactions.sh --bootstrap-server HOST:PORT abort --topic {topic} --partition {partition}"
            f" --start-offset {first} (brokers before 3.0: --producer-id {entry.producer_id} --producer-epoch"
            f" {entry.producer_epoch} --coordinator-epoch {max(entry.coordinator_epoch, 0)} instead of the offset)"
        )


def _row(one: "RestoredPartition") -> Row:
    from resnap.scheduler.answers.reports import identity

    return {
        **identity(one.restoration.topic_partition),
        "topicId": one.restoration.topic_id,
        "startOffset": one.restoration.start_offset,
        "logStartOffset": one.restoration.start_offset
        if one.restoration.log_start is None
        else one.restoration.log_start,
        "endOffset": one.restoration.end_offset,
        "segments": one.restoration.segments,
        "bytes": one.restoration.size_bytes,
        "openTransactions": [
            {
                "producerId": entry.producer_id,
                "producerEpoch": entry.producer_epoch,
                "coordinatorEpoch": entry.coordinator_epoch,
                "firstOffset": entry.current_txn_first_offset,
            }
            for entry in one.restoration.open_transactions
        ],
        "outcome": one.outcome.value,
    }


def _closing(run: Invocation, total: dict[str, int]) -> str:
    counts = f"{human_count(total['restored'])} partitions in {human_count(total['segments'])} segments"
    rest = f"({human_bytes(total['bytes'])}); {human_count(total['alreadyThere'])} were there already."
    would = "would be restored" if run.settings.dry_run else "restored"
    return f"{counts} {would} {rest}" + (" Nothing was written." if run.settings.dry_run else "")
