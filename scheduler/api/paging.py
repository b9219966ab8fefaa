"""Pages and validators of answers: cursors that nobody need understand, and ETags made of what is answered."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

from fastapi import Query

from resnap.scheduler.api.problem_kinds import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


PAGE: Final = 50
LARGEST_PAGE: Final = 500

Limit: TypeAlias = Annotated[int, Query(ge=1, le=LARGEST_PAGE, description="Items of a page.")]
Cursor: TypeAlias = Annotated[
    str | None, Query(max_length=600, description="`nextCursor` of the page before; the first page without it.")
]


def encoded(*parts: object) -> str:
    """Return a cursor that stands for ``parts``."""
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode().rstrip("=")


def decoded(cursor: str | None, *kinds: type) -> tuple[Any, ...] | None:
    """Return what a cursor stands for; None if there is none.

    Raises:
        InvalidRequestError: it is none of ours.

    """
    if cursor is None:
        return None
    try:
        parts = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, RecursionError):
        parts = None
    if not isinstance(parts, list) or [type(part) for part in parts] != list(kinds) or not all(map(_is_kept, parts)):
        raise InvalidRequestError(
            "query cursor: not a cursor of this list", hint="take `nextCursor` of the page before as it is"
        )
    return tuple(parts)


def _is_kept(part: object) -> bool:
    """Whether the database could hold it, and so whether it may stand in a cursor of ours."""
    return not isinstance(part, str | int) or (part.isprintable() if isinstance(part, str) else abs(part) < 1 << 63)


def cut(found: Sequence[Any], limit: int, cursor_of: Callable[[Any], str]) -> tuple[list[Any], str | None]:
    """Return a page of what was found, one more than ``limit`` at most, and the cursor of the next."""
    page = list(found[:limit])
    return page, cursor_of(page[-1]) if len(found) > limit else None
