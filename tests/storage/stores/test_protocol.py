from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.storage.errors import UsageError
from resnap.storage.stores.protocol import check_key, is_safe_path

PORTABLE = string.ascii_letters + string.digits + "!_.*'()=-"

parts = st.text(PORTABLE, min_size=1, max_size=200).filter(lambda part: part not in {".", ".."})


@given(st.lists(parts, min_size=1, max_size=4).map("/".join))
def test_every_key_of_portable_parts_is_taken(key: str) -> None:
    check_key(key)
    assert is_safe_path(key)


def test_only_the_directory_of_a_partition_has_a_longer_name() -> None:
    check_key(f"{'t' * 249}-12345/00000000000000000007.snapshot")
    for name in ("t" * 201, f"{'t' * 250}-0", f"{'t' * 200}-01"):
        with pytest.raises(UsageError, match="at most 200 bytes"):
            check_key(f"{name}/00000000000000000007.snapshot")


@given(st.text(max_size=30), st.characters(exclude_characters=PORTABLE + "/"), st.text(max_size=30))
def test_one_character_out_of_line_spoils_a_key(before: str, character: str, after: str) -> None:
    with pytest.raises(UsageError, match="object key"):
        check_key(before + character + after)


@given(st.lists(parts | st.sampled_from(["", ".", ".."]), min_size=1, max_size=4))
def test_a_path_is_safe_unless_a_part_is_empty_or_dots(names: list[str]) -> None:
    assert is_safe_path("/".join(names)) is not bool({"", ".", ".."} & set(names))
