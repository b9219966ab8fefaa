"""Findings of `resnap doctor`: one answer to one question, with what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from resnap.scheduler.job.contract import Result

if TYPE_CHECKING:
    from resnap.storage.errors import ResnapError


class Health(StrEnum):
    """How an answer is to be taken."""

    OK = "ok"
    WARN = "warn"
    """Something will not work, or not as well as it could; what does, does so correctly."""
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorFinding(Result):
    """One answer."""

    health: Health
    check: str
    """What was checked, in a word or two."""
    detail: str
    remedy: str | None = None


def ok(check: str, detail: str) -> DoctorFinding:
    """Return the finding that all is well."""
    return DoctorFinding(health=Health.OK, check=check, detail=detail)


def warn(check: str, detail: str, remedy: str | None = None) -> DoctorFinding:
    """Return the finding that something could be better."""
    return DoctorFinding(health=Health.WARN, check=check, detail=detail, remedy=remedy)


def fail(check: str, detail: str, remedy: str | None = None) -> DoctorFinding:
    """Return the finding that something will not do."""
    return DoctorFinding(health=Health.FAIL, check=check, detail=detail, remedy=remedy)


def failed(check: str, error: ResnapError) -> DoctorFinding:
    """Return the finding that an error makes."""
    return fail(check, str(error), error.hint)
