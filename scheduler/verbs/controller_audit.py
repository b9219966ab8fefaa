"""`resnap controller audit`: checks that every producer id of a log dir is in exactly one allocated block."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import typer
from typing_extensions import TypedDict

from resnap.scheduler.cli.failures import OK
from resnap.scheduler.cli.flags import METADATA, SERVER, STORE, TOPIC
from resnap.scheduler.job.contract import Context, Reported, Request, Verb, View
from resnap.scheduler.job.wiring import metadata_log_of, scope_of, sources_of
from resnap.scheduler.output.records import columns_of, plain, row_of
from resnap.scheduler.output.rendering import Column, Row
from resnap.scheduler.verbs.controller import BlockRow, about_blocks
from resnap.storage.errors import MetadataLogError, VerificationError
from resnap.storage.sources.log_dirs import open_source
from resnap.storage.words import human_count, some
from resnap.tiering.controller.audit import Audit, audit
from resnap.tiering.controller.metadata.cluster import find_metadata_log
from resnap.tiering.controller.metadata.folding import load_image
from resnap.tiering.controller.metadata.log_files import list_metadata_log
from resnap.tiering.selection import nothing_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(Request):
    """Check that every producer id in snapshots and segments is in exactly one block that was allocated."""

    log_dir: Annotated[str, typer.Argument(metavar="LOG_DIR", help="A log dir, or the URL of a copy of one.")]


def run(request: Asked, context: Context) -> Iterator[Reported[Audit]]:
    """Yield the audit, by the metadata log in the log dir or that the settings name.

    Raises:
        UsageError: there is no log dir, nothing in scope in it, or no metadata log.
        MetadataLogError: nothing says which producer ids were allocated last.
        ResnapError: either cannot be read.

    """
    settings = context.settings
    scope = scope_of(settings, [request.log_dir])
    sources = sources_of(settings)
    beside = None if settings.metadata_log else find_metadata_log([request.log_dir])
    directory = metadata_log_of(settings, None if beside is None else str(beside))
    log_dir = open_source(request.log_dir, sources, topics=lambda partition: scope.wants(partition.topic))
    if not log_dir.partitions and not log_dir.problems:
        raise nothing_in(scope)
    if not list_metadata_log(directory).segments:
        raise MetadataLogError(
            f"{directory} has no .log: which producer ids were allocated since its checkpoint is not known",
            hint="give a whole copy of the directory __cluster_metadata-0 of a controller, or of a broker",
        )
    found = audit(log_dir, partial(load_image, directory), sources)
    yield Reported(what=found, faults=found.problems, partly_done=bool(found.problems))


def _spans(value: object) -> str:
    blocks: Sequence[Row] = value if isinstance(value, list) else []
    return ", ".join(f"[{block['firstProducerId']}, {block['lastProducerId']}]" for block in blocks) or "none"


def _carried(value: object) -> str:
    carriers: Sequence[Row] = value if isinstance(value, list) else []
    first = carriers[0]
    offsets = first["baseOffsets"]
    at = f" at {', '.join(map(str, offsets))}" if isinstance(offsets, list) and offsets else ""
    more = f", and {some(len(carriers) - 1, 'more file')}" if len(carriers) > 1 else ""
    return f"{first['file']}{at}{more}"


class FindingRow(TypedDict):
    """A producer id that was not allocated, or twice."""

    producerId: Annotated[int, Column(title="PRODUCER ID", right=True)]
    fault: Annotated[str, Column(title="FAULT")]
    blocks: Annotated[list[BlockRow], Column(title="BLOCKS", show=_spans)]
    carriers: Annotated[Any, lambda finding: plain(finding.carriers), Column(title="CARRIED BY", show=_carried)]


class AuditView(View["Reported[Audit]"]):
    """A row per producer id that was not allocated, or twice."""

    kind = "finding"
    columns = columns_of(FindingRow)
    audit: Audit
    exit_code = OK

    def rows(self, result: Reported[Audit]) -> Iterator[Row]:
        """Yield a row per finding."""
        self.audit = result.what
        self.exit_code = VerificationError.exit_code if result.what.findings else OK
        yield from (row_of(FindingRow, finding) for finding in result.what.findings)

    def totals(self) -> Row:
        """Return how much was read, and how much of it is wrong."""
        return {
            "producerIds": self.audit.producer_ids,
            "files": self.audit.files,
            "findings": len(self.audit.findings),
            "nextProducerId": self.audit.image.next_producer_id,
        }

    def closing(self) -> Iterator[str]:
        """Yield the same in words."""
        files = human_count(self.audit.files)
        carriers = "1 file" if self.audit.files == 1 else f"{files} snapshots and segments"
        read = f"{some(self.audit.producer_ids, 'producer id')} in {carriers}"
        yield ""
        if self.audit.findings:
            yield f"{len(self.audit.findings)} of {read} are not in exactly one allocated block."
        else:
            yield f"Each of {read} is in exactly one allocated block."
        yield from about_blocks(self.audit.image)


VERB = Verb(takes=(TOPIC, METADATA, SERVER, STORE), request=Asked, run=run, view=lambda *_: AuditView(), reads="other")
