"""Files stored in pieces inside objects of a layout: recognizes their locators, and opens them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resnap.storage.layouts.aiven.members import MARK, member_of, stem_of
from resnap.storage.layouts.aiven.opening import facts_of_member, member_meant, opened_member

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from resnap.storage.layouts.aiven.opening import Opener
    from resnap.storage.readers import FileFacts, RangeReader

__all__ = ["MARK", "stem_of"]


def open_inner(opener: Opener, locator: str, end: int | None) -> AbstractContextManager[RangeReader] | None:
    """Return a reader of the file that ``locator`` names; None for any other locator.

    Nothing is read ahead beyond ``end``.
    """
    member = member_of(locator)
    return None if member is None else opened_member(opener, member, end)


def is_inner(locator: str) -> bool:
    """Whether ``locator`` names a file inside objects."""
    return member_of(locator) is not None


def inner_facts(opener: Opener, locator: str) -> FileFacts | None:
    """Return size and time of the file that ``locator`` names; None for any other locator."""
    member = member_of(locator)
    return None if member is None else facts_of_member(opener, member)


def meant_inner(opener: Opener, locator: str) -> str | None:
    """Return the locator of the file inside objects that ``locator``, or the object there, means; None if neither.

    An object stands for a file where what says in which pieces it lies is beside it.
    """
    member = member_meant(opener, locator)
    return None if member is None else member.locator
