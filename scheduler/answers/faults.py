"""Which results of the use cases are errors: one judgement for the shell command and for the service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from resnap.storage.errors import UsageError, VerificationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from resnap.storage.errors import ResnapError
    from resnap.tiering.checking.chains import Chain


_SHIP_THE_GAP: Final = "ship it from a replica that still has it; a broker that restores from here stops at the gap"
_CHOOSE: Final = (
    "two histories claim these offsets: keep the one that the cluster has, and delete the other's manifests"
)


def segment_faults(problems: Iterable[str], remedy: str) -> Iterator[ResnapError]:
    """Yield what reading a shipped segment back showed to be wrong, with what its layout has as a remedy."""
    for problem in problems:
        yield VerificationError(problem, hint=remedy)


def chain_faults(chain: Chain) -> Iterator[ResnapError]:
    """Yield where readers of a partition's shipped segments would stop, or could take either of two histories."""
    yield from chain_gaps(chain)
    yield from chain_overlaps(chain)


def chain_gaps(chain: Chain) -> Iterator[ResnapError]:
    """Yield where readers of a partition's shipped segments would stop."""
    for gap in chain.gaps:
        what = f"{chain.topic_partition}: nothing was shipped of the offsets [{gap.start}, {gap.end})"
        yield VerificationError(what, hint=_SHIP_THE_GAP)


def chain_overlaps(chain: Chain) -> Iterator[ResnapError]:
    """Yield where readers of a partition's shipped segments could take either of two histories."""
    for gap in chain.breaks:
        what = (
            f"{chain.topic_partition}: no segment begins where another ends on the way through [{gap.start}, {gap.end})"
        )
        yield VerificationError(what, hint=_CHOOSE)
    for one in chain.overlaps:
        if not one.is_one_lineage:
            what = f"{chain.topic_partition}: two segments have the offsets [{one.start}, {one.end})"
            yield VerificationError(f"{what}, under different leader epochs", hint=_CHOOSE)


def nothing_shipped(url: str) -> ResnapError:
    """Return that there was nothing to verify in the store at ``url``."""
    hint = (
        "give the URL that `resnap tier --to` was given; of what brokers tiered only the layout `aiven` can be"
        " verified, and `resnap remote status --store URL` looks at the rest"
    )
    return UsageError(f"{url} holds no shipped segment", hint=hint)
