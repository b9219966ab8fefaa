"""Markdown tables, and numbers as people read them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

UNITS: Final = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
_SHORT: Final = {"T": 1 << 40, "G": 1 << 30, "M": 1 << 20, "K": 1 << 10}


@dataclass(slots=True)
class Table:
    """One question and its rows."""

    title: str
    columns: list[str]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    """Sentences printed below the table."""

    def add(self, *cells: str) -> None:
        """Append a row of as many cells as there are columns."""
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells for {len(self.columns)} columns")
        self.rows.append(cells)

    def markdown(self) -> str:
        """Return title, table and remarks."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        body = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
        remarks = "".join(f"\n- {remark}" for remark in self.remarks)
        return f"**{self.title}**\n\n{body}\n{remarks and chr(10)}{remarks.lstrip(chr(10))}".rstrip() + "\n"


def amount(size_bytes: float) -> str:
    """Return a number of bytes in a unit that leaves it between 1 and 1024."""
    for unit, factor in UNITS:
        if size_bytes >= factor:
            return f"{size_bytes / factor:.3g} {unit}"
    return f"{size_bytes:.0f} B"


def size_of(text: str) -> int:
    """Return the bytes that an argument such as ``200``, ``16K`` or ``1.5G`` asks for."""
    number, factor = (text[:-1], _SHORT[text[-1].upper()]) if text[-1:].upper() in _SHORT else (text, 1)
    return int(float(number) * factor)


def compact(size_bytes: int) -> str:
    """Return what ``size_of`` reads as ``size_bytes``."""
    for unit, factor in _SHORT.items():
        if size_bytes % factor == 0:
            return f"{size_bytes // factor}{unit}"
    return str(size_bytes)


def seconds(value: float) -> str:
    """Return a time with three digits that mean something."""
    return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s"


def times(ratio: float) -> str:
    """Return how many times faster."""
    return f"{ratio:.3g}x" if ratio < 1000 else f"{ratio:.0f}x"


def rate(size_bytes: float, duration_s: float) -> str:
    """Return gigabytes a second, as disks are sold: of 10^9 bytes."""
    return f"{size_bytes / duration_s / 1e9:.3g} GB/s" if duration_s else "-"
