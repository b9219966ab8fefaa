"""A picture of a simulation: active ids, tokens, and throttled batches over time, for those principals that matter."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from resnap.storage.errors import ConfigurationError, LogDirError, UsageError
from resnap.storage.extras import install_hint

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.figure import Figure

    from resnap.tiering.quota.simulation import Outcome

MOST: Final = 6
FORMATS: Final = (".png", ".svg")
FURTHEST_MS: Final = int(datetime(9500, 1, 1, tzinfo=UTC).timestamp() * 1000)
"""The axis has a margin, and ends with the year 9999."""
_PANELS: Final = (("active", "active ids"), ("tokens", "tokens"), ("throttled", "throttled batches"))


def check_plot(path: Path) -> None:
    """Check, before anything is read, that a picture can be made.

    Raises:
        UsageError: the name ends in nothing that can be drawn, or nothing can be written there.
        ConfigurationError: what draws is not installed.

    """
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"--plot {path}: expected a name that ends in {' or '.join(FORMATS)}")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"--plot {path}: no file can be written there", hint="give --plot another place")
    try:
        import matplotlib as mpl  # an extra
    except ImportError as error:
        raise ConfigurationError("--plot needs matplotlib", hint=install_hint("plot", "matplotlib")) from error
    mpl.rcParams["svg.hashsalt"] = "resnap"


def draw(outcomes: Sequence[Outcome], path: Path) -> None:
    """Draw the most throttled principals, and then those with the most new ids, into ``path``.

    Times beyond the year 9499, which only a client can have made up, are left out.

    Raises:
        LogDirError: it cannot be written.

    """
    chosen = sorted(outcomes, key=lambda one: (-one.throttled_ms, -one.new_ids, one.principal))[:MOST]
    figure = figure_of()
    axes = figure.subplots(len(_PANELS), sharex=True)
    for axis, (field, title) in zip(axes, _PANELS, strict=True):
        for outcome in chosen:
            curve = [moment for moment in outcome.curve if moment.at_ms < FURTHEST_MS]
            times = [datetime.fromtimestamp(moment.at_ms / 1000, UTC) for moment in curve]
            values = [getattr(moment, field) for moment in curve]
            axis.plot(times, values, label=label(outcome.principal), drawstyle="steps-post")
        axis.set_ylabel(title)
        axis.grid(visible=True, alpha=0.3)
    axes[1].axhline(0, color="black", linewidth=0.8)
    if chosen:
        axes[0].legend(loc="upper left", fontsize="small")
    axes[-1].set_xlabel("time of the log (UTC)")
    save(figure, path)


def figure_of() -> Figure:
    """Return an empty page to draw on."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 8), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a picture; equal ones are equal bytes.

    Raises:
        LogDirError: it cannot be written.

    """
    try:
        is_svg = path.suffix.lower() == ".svg"
        figure.savefig(path, dpi=110, metadata={"Date": None} if is_svg else None)
    except OSError as error:
        raise LogDirError(f"{path}: cannot be written: {error.strerror}", hint="give --plot another place") from error


def label(principal: str) -> str:
    """Return a label for a legend, where a dollar sign begins a formula, and a low line at the start hides it."""
    text = principal.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text
