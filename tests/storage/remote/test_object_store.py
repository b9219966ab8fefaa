from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import UsageError
from storage.remote.object_store import check_key, is_safe_path

PORTABLE = string.ascii_letters + string.digits + "!_.*'()=-"

parts = st.text(PORTABLE, min_size=1, max_size=200).filter(lambda part: part not in {".", ".."})


@given(st.lists(parts, min_size=1, max_size=4).map("/".join))
def test_every_key_of_portable_parts_is_taken(key: str) -> None:
    check_key(key)
    assert is_safe_path(key)


@given(st.text(max_size=30), st.characters(exclude_characters=PORTABLE + "/"), st.text(max_size=30))
def test_one_character_out_of_line_spoils_a_key(before: str, character: str, after: str) -> None:
    with pytest.raises(UsageError, match="object key"):
        check_key(before + character + after)


@given(st.lists(parts | st.sampled_from(["", ".", ".."]), min_size=1, max_size=4))
def test_a_path_is_safe_unless_a_part_is_empty_or_dots(names: list[str]) -> None:
    assert is_safe_path("/".join(names)) is not bool({"", ".", ".."} & set(names))
