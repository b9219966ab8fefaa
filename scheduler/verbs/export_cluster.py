"""`resnap export-cluster`: writes what a running cluster tells of itself, besides records, to a store."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import typer

from resnap.scheduler.cli.flags import CLUSTER, S3, WRITE
from resnap.scheduler.job.contract import Context, Reported, Request, Verb
from resnap.scheduler.job.wiring import cluster_of
from resnap.scheduler.verbs.export import Exported, ExportView, exported
from resnap.storage.stores.urls import open_store
from resnap.tiering.cluster.live_state import ask_cluster_state


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(Request):
    """Write what a running cluster tells of itself to a store: groups' offsets, ACLs, quotas, configuration.

    Like `resnap export`, with one command for all brokers, from anywhere, and for clusters with ZooKeeper, too. Brokers
    tell no passwords, nor SCRAM credentials. The user of --command-config needs DESCRIBE of cluster, topics and groups,
    and DESCRIBE_CONFIGS. `resnap restore --new-cluster` takes the last object.
    """

    to: Annotated[str, typer.Option("--to", metavar="URL", help="The store that `resnap tier --to` ships to.")]
    keep: Annotated[
        int | None,
        typer.Option(
            "--keep", metavar="N", min=1, help="Delete all but the last N that were asked for; else all are kept."
        ),
    ] = None


def run(request: Asked, context: Context) -> Iterator[Reported[Exported]]:
    """Yield what was written; with ``dry_run`` what would be.

    Raises:
        UsageError: the store has no such URL.
        ConfigurationError: no cluster is named.
        ClusterError: it does not answer, or refuses a request.
        StoreError: the store failed.

    """
    store = open_store(request.to, context.settings.s3())
    with cluster_of(context.settings) as cluster:
        state, faults = ask_cluster_state(cluster, taken_ms=context.clock.now_ms())
    yield exported(state, faults, store, request.keep, context)


VERB = Verb(
    takes=(CLUSTER, WRITE, S3),
    request=Asked,
    run=run,
    view=lambda _, context: ExportView(dry_run=context.settings.dry_run),
    reads="cluster",
    to="to",
    is_short=True,
)
