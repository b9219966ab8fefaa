"""``/v1/problems``: what the types of problems stand for."""

from fastapi import APIRouter

from resnap.scheduler.api.problem_kinds import BY_CODE, PROBLEMS_PATH, Kind, NotFoundError
from resnap.scheduler.api.problems import problems

router = APIRouter(prefix=PROBLEMS_PATH, tags=["problems"])


@router.get("", summary="All kinds of problems")
def list_problems() -> dict[str, list[dict[str, object]]]:
    """Return every kind of problem that this service answers with; needs no token."""
    return {"problems": [_shown(kind) for kind in BY_CODE.values()]}


@router.get("/{code}", summary="One kind of problem", responses=problems("not-found"))
def get_problem(code: str) -> dict[str, object]:
    """Return what the ``type`` of a problem stands for; needs no token."""
    if code not in BY_CODE:
        raise NotFoundError(f"there is no kind of problem {code[:100]!r}")
    return _shown(BY_CODE[code])


def _shown(kind: Kind) -> dict[str, object]:
    return {"type": kind.type, "code": kind.code, "status": kind.status, "title": kind.title, "hint": kind.hint}
