"""Paging of lists, with opaque cursors; routes with ETags, so that unchanged responses are not sent again."""

import base64
import hashlib
import json
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeAlias, TypeVar

from fastapi import Depends, Query, Request, Response
from fastapi.routing import APIRoute

from resnap.scheduler.api.problems import HttpError

T = TypeVar("T")
PAGE: Final = 50
LARGEST_PAGE: Final = 500
Limit: TypeAlias = Annotated[int, Query(ge=1, le=LARGEST_PAGE, description="Items of a page.")]


@dataclass(frozen=True, slots=True)
class Page:
    """Which page of a list is asked for; its cursor stands for what the last item of the page before is sorted by."""

    limit: Limit = PAGE
    cursor: Annotated[
        str | None, Query(max_length=600, description="`nextCursor` of the page before; the first page without it.")
    ] = None

    @property
    def most(self) -> int:
        """How many items to look for: one more than are shown says that there is a next page."""
        return self.limit + 1

    def after(self, *kinds: type) -> Any:  # noqa: ANN401 - as the cursor was made
        """Return what the page begins behind, a value of ``kinds`` or a tuple of several; None for the first page.

        Raises:
            HttpError: the cursor is not of this list.

        """
        parts = decode_cursor(self.cursor, *kinds)
        return parts[0] if parts is not None and len(parts) == 1 else parts

    def cut(self, found: Sequence[T], key: Callable[[T], object]) -> tuple[list[T], str | None]:
        """Return the page of what was ``found`` behind ``after``, ``most`` at most, and the cursor of the next."""
        page = list(found[: self.limit])
        if len(found) <= self.limit:
            return page, None
        last = key(page[-1])
        return page, encode_cursor(*last) if isinstance(last, tuple) else encode_cursor(last)

    def cut_whole(self, found: Iterable[T], key: Callable[[T], Any], kind: type) -> tuple[list[T], str | None]:
        """Return the page of all that there is, in the order of ``key``, and the cursor of the next."""
        after = self.after(kind)
        return self.cut([item for item in found if after is None or key(item) > after], key)

    def cut_at(self, find: Callable[[int, int], Sequence[T]]) -> tuple[list[T], str | None]:
        """Return the page of what ``find`` gives, by how many are wanted and how many skipped, and the next cursor."""
        skip = self.after(int) or 0
        return self.cut(find(self.most, skip), lambda _: skip + self.limit)


Paging: TypeAlias = Annotated[Page, Depends()]


def encode_cursor(*parts: object) -> str:
    """Return a cursor that stands for ``parts``."""
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode().rstrip("=")


def decode_cursor(cursor: str | None, *kinds: type) -> tuple[Any, ...] | None:
    """Return what a cursor stands for; None if there is none.

    Raises:
        HttpError: it is not one of ours.

    """
    if cursor is None:
        return None
    try:
        parts = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, RecursionError):
        parts = None
    if not isinstance(parts, list) or [type(part) for part in parts] != list(kinds) or not all(map(_is_kept, parts)):
        hint = "take `nextCursor` of the page before as it is"
        raise HttpError("invalid-request", "query cursor: not a cursor of this list", hint=hint)
    return tuple(parts)


def _is_kept(part: object) -> bool:
    """Whether the database could hold it, and so whether it may stand in a cursor of ours."""
    return not isinstance(part, str | int) or (part.isprintable() if isinstance(part, str) else abs(part) < 1 << 63)


_OK: Final = 200
_JSON: Final = "application/json"


class TaggedRoute(APIRoute):
    """A route that gives its answers an ETag, and answers 304 to a caller who has it; its description says so."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **given: Any) -> None:  # noqa: ANN401 - FastAPI's own
        super().__init__(path, endpoint, **given)
        if self.response_field is not None and "GET" in (self.methods or ()):
            self.responses = {304: {}, **self.responses}

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what answers requests."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            made = await handle(request)
            if made.media_type != _JSON:
                return made
            made.headers.setdefault("Cache-Control", "no-cache")
            return add_etag(request, made)

        return answer


def add_etag(request: Request, answer: Response) -> Response:
    """Return an answer that is whole with its ETag, or 304 with the same headers where the caller has it already."""
    etag = f'"{hashlib.sha256(answer.body).hexdigest()[:32]}"'
    answer.headers["ETag"] = etag
    known = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
    if request.method not in {"GET", "HEAD"} or answer.status_code != _OK or not known & {etag, "*"}:
        return answer
    kept = {name: value for name, value in answer.headers.items() if name not in {"content-length", "content-type"}}
    return Response(status_code=304, headers=kept)
