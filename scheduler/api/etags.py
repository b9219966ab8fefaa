"""Routes with ETags, so that unchanged responses are not sent again."""

import hashlib
from collections.abc import Callable, Coroutine
from typing import Any, Final

from fastapi import Request, Response
from fastapi.routing import APIRoute

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
            return tagged(request, made)

        return answer


def tagged(request: Request, answer: Response) -> Response:
    """Return an answer that is whole with its ETag, or 304 with the same headers where the caller has it already."""
    etag = f'"{hashlib.sha256(answer.body).hexdigest()[:32]}"'
    answer.headers["ETag"] = etag
    known = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
    if request.method not in {"GET", "HEAD"} or answer.status_code != _OK or not known & {etag, "*"}:
        return answer
    kept = {name: value for name, value in answer.headers.items() if name not in {"content-length", "content-type"}}
    return Response(status_code=304, headers=kept)
