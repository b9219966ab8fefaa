"""Commands about what a cluster's controllers know: read from their metadata log, which is never written to."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from resnap.scheduler.cli.failures import OK
from resnap.scheduler.cli.flags import METADATA, SERVER, STORE, TOPIC
from resnap.scheduler.cli.invocation import Invocation
from resnap.scheduler.cli.options import with_settings

if TYPE_CHECKING:
    from resnap.tiering.controller.metadata.image import MetadataImage


MetadataLog = Annotated[
    Path | None,
    typer.Argument(
        metavar="[DIR]",
        help="The directory __cluster_metadata-0, or the log dir that contains it; the default is --metadata-log.",
    ),
]


@with_settings(METADATA, SERVER)
def show_image(run: Invocation, directory: MetadataLog = None) -> None:
    """Show topics with their ids, and all else that the log amounts to: --output json has everything."""
    from resnap.scheduler.use_cases.controlling import image_answer

    run.answer(image_answer(_image(run, directory), whole=run.output.form != "table"))


@with_settings(METADATA, SERVER)
def show_producer_ids(run: Invocation, directory: MetadataLog = None) -> None:
    """Show every block of producer ids: which broker got it, under which epoch, and when."""
    from resnap.scheduler.use_cases.controlling import producer_ids_answer
    from resnap.tiering.controller.metadata.records import ProducerIdsRecord

    run.answer(producer_ids_answer(_image(run, directory).relying_on(ProducerIdsRecord)))


@with_settings(METADATA, SERVER)
def show_brokers_config(run: Invocation, directory: MetadataLog = None) -> None:
    """Show what brokers go by: each setting's value, who set it, and what that overrules."""
    from resnap.scheduler.settings.layers import static_properties
    from resnap.scheduler.use_cases.controlling import config_answer
    from resnap.tiering.controller.metadata.folding import SETTINGS_TYPES

    properties = run.settings.server_properties
    static = {} if properties is None else static_properties(properties)
    run.answer(config_answer(_image(run, directory).relying_on(*SETTINGS_TYPES), static))


@with_settings(TOPIC, METADATA, SERVER, STORE)
def audit_log_dir(
    run: Invocation,
    log_dir: Annotated[str, typer.Argument(metavar="LOG_DIR", help="A log dir, or the URL of a copy of one.")],
) -> int:
    """Check that every producer id in snapshots and segments lies in exactly one block that was allocated."""
    from resnap.scheduler.use_cases.controlling import audit_answer
    from resnap.scheduler.wiring import audit_of
    from resnap.storage.errors import VerificationError

    audit = audit_of(run.settings, log_dir)
    run.answer(audit_answer(audit))
    for problem in audit.problems:
        run.error(problem)
        run.partly_done = True
    return VerificationError.exit_code if audit.findings else OK


def _image(run: Invocation, directory: Path | None) -> "MetadataImage":
    from resnap.scheduler.wiring import metadata_log_of
    from resnap.tiering.controller.metadata.folding import load_image

    return load_image(metadata_log_of(run.settings, None if directory is None else str(directory)))
