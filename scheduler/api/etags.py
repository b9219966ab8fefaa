"""Answers with a validator, so that what has not changed is not sent again."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from fastapi import Response

if TYPE_CHECKING:
    from fastapi import Request
    from pydantic import BaseModel

_OK = 200


def validated(
    request: Request, answer: BaseModel, status: int = _OK, headers: dict[str, str] | None = None
) -> Response:
    """Return ``answer`` with its ETag, or 304 where the caller has it already."""
    body = answer.model_dump_json(by_alias=True).encode()
    sent = {"Cache-Control": "no-cache", **(headers or {})}
    return tagged(request, Response(body, status, headers=sent, media_type="application/json"))


def tagged(request: Request, answer: Response) -> Response:
    """Return an answer that is whole with its ETag, or 304 with the same headers where the caller has it already."""
    etag = f'"{hashlib.sha256(answer.body).hexdigest()[:32]}"'
    answer.headers["ETag"] = etag
    known = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
    if request.method not in {"GET", "HEAD"} or answer.status_code != _OK or not known & {etag, "*"}:
        return answer
    kept = {name: value for name, value in answer.headers.items() if name not in {"content-length", "content-type"}}
    return Response(status_code=304, headers=kept)
