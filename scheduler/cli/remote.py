"""Commands about tiered storage as brokers see it, by their metadata topic."""

from typing import Annotated

import typer

from resnap.scheduler.cli.failures import OK
from resnap.scheduler.cli.flags import CLUSTER, STORE, TOPIC
from resnap.scheduler.cli.invocation import Invocation
from resnap.scheduler.cli.options import with_settings


@with_settings(TOPIC, CLUSTER, STORE)
def show_status(
    run: Invocation,
    log_dirs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[LOG_DIR]...", help="Log dirs of one broker; the default is log.dirs."),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            "--store", metavar="URL", help="The store that brokers tier to; it is compared with what they know."
        ),
    ] = None,
) -> int:
    """Show what brokers know of remote storage: segments by state, orphans, gaps; against disk and store.

    By the metadata topic in LOG_DIR, or of the cluster that --bootstrap-server names, where LOG_DIR may be left out.
    """
    from resnap.scheduler.use_cases.remote_status import look, status_answer
    from resnap.scheduler.wiring import cluster_of, scope_of
    from resnap.storage.errors import VerificationError
    from resnap.storage.sources.files import Sources
    from resnap.storage.sources.log_dirs import open_source
    from resnap.storage.stores.urls import open_store
    from resnap.tiering.remote_log.comparison import HARMFUL

    live = run.settings.bootstrap_server
    places = log_dirs or list(map(str, run.settings.log_dirs))
    scope = scope_of(run.settings, places if live is None or places else [live])
    sources = Sources(s3=run.settings.s3())
    cluster = None if live is None else run.at_end.enter_context(cluster_of(run.settings))
    status = look(
        lambda: [open_source(place, sources) for place in places],
        scope,
        None if store is None else open_store(store, run.settings.s3()),
        cluster,
    )
    run.answer(status_answer(status, whole=run.output.form != "table"))
    for problem in status.problems:
        run.error(problem)
    harmful = [one for one in status.comparison.findings if one.kind in HARMFUL]
    for one in harmful:
        run.error(VerificationError(f"{one.place}: {one.kind.value}: {one.detail}", hint=one.hint))
    return VerificationError.exit_code if harmful else OK
