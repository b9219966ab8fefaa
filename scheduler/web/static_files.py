"""Serves the style sheet, the script and the icon, without a token, because the sign-in form needs them, too."""

from fastapi import APIRouter, Request, Response

from resnap.scheduler.api.problem_kinds import NotFoundError
from resnap.scheduler.web.rendering import ASSETS, STATIC_PATH

router = APIRouter(include_in_schema=False)


@router.get(STATIC_PATH + "/{name}")
def get_static(request: Request, name: str) -> Response:
    """Return a file; under the address that pages have, which names its digest, it may be kept for good."""
    asset = ASSETS.get(name)
    if asset is None:
        raise NotFoundError("there is no such file")
    kept = "public, max-age=31536000, immutable" if asset.url.endswith(f"?{request.url.query}") else "no-cache"
    return Response(asset.data, media_type=asset.media_type, headers={"Cache-Control": kept})
