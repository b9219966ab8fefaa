"""Draws a simulated quota, and a census of producers."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import numpy as np

from resnap.storage.errors import ConfigurationError, LogDirError, UsageError, install_hint
from resnap.tiering.quota.producer_census import AGES, DAY_MS, HOUR_MS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from matplotlib.figure import Figure

    from resnap.tiering.quota.producer_census import Census
    from resnap.tiering.quota.simulation import PrincipalOutcome

MOST: Final = 6
"""Most principals, or topics, in one picture."""
FORMATS: Final = (".png", ".svg")
FURTHEST_MS: Final = int(datetime(9500, 1, 1, tzinfo=UTC).timestamp() * 1000)
"""The axis has a margin, and ends with the year 9999."""
_STEPS: Final = 48
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


def draw_simulation(outcomes: Sequence[PrincipalOutcome], path: Path) -> None:
    """Draw active ids, tokens and throttled batches over time into ``path``.

    Of the most throttled principals, and then of those with the most new ids. Times beyond the year 9499, which only a
    client can have made up, are skipped.

    Raises:
        LogDirError: it cannot be written.

    """
    chosen = sorted(outcomes, key=lambda outcome: (-outcome.throttled_ms, -outcome.new_ids, outcome.principal))[:MOST]
    figure = _empty_figure()
    axes = figure.subplots(len(_PANELS), sharex=True)
    for axis, (field, title) in zip(axes, _PANELS, strict=True):
        for outcome in chosen:
            curve = [moment for moment in outcome.curve if moment.at_ms < FURTHEST_MS]
            times = [datetime.fromtimestamp(moment.at_ms / 1000, UTC) for moment in curve]
            values = [getattr(moment, field) for moment in curve]
            axis.plot(times, values, label=_label(outcome.principal), drawstyle="steps-post")
        axis.set_ylabel(title)
        axis.grid(visible=True, alpha=0.3)
    axes[1].axhline(0, color="black", linewidth=0.8)
    if chosen:
        axes[0].legend(loc="upper left", fontsize="small")
    axes[-1].set_xlabel("time of the log (UTC)")
    _save(figure, path)


def draw_census(topics: Mapping[str, Census], total: Census, expirations_ms: Sequence[int], path: Path) -> None:
    """Draw the ages of the topics with the most producers, and what is left of all, into ``path``.

    Raises:
        LogDirError: it cannot be written.

    """
    figure = _empty_figure()
    ages, left = figure.subplots(2)
    chosen = sorted(topics.items(), key=lambda item: (-item[1].producers, item[0]))
    below = np.zeros(len(total.ages()), np.int64)
    others = {"other topics": [census for _, census in chosen[MOST:]]} if chosen[MOST:] else {}
    for topic, counted in ({topic: [census] for topic, census in chosen[:MOST]} | others).items():
        heights = np.sum([list(census.ages().values()) for census in counted], axis=0)
        ages.bar(
            [f"< {age}" if age in AGES else age for age in total.ages()], heights, bottom=below, label=_label(topic)
        )
        below += heights
    ages.set_ylabel("producers by age")
    if chosen:
        ages.legend(loc="upper right", fontsize="small")
    for expiration_ms in expirations_ms:
        # Whole hours are edges of bins, and so exact.
        hours = np.unique(np.linspace(0, -(-expiration_ms // HOUR_MS), _STEPS).astype(np.int64))
        counts = [total.producers - total.expired(expiration_ms, int(hour) * HOUR_MS) for hour in hours]
        left.plot(hours * HOUR_MS / DAY_MS, counts, label=f"producer.id.expiration.ms={expiration_ms}")
    left.set_ylabel("producers left")
    left.set_xlabel("days from now, if nothing is written")
    left.set_ylim(bottom=0)
    left.legend(loc="upper right", fontsize="small")
    left.grid(visible=True, alpha=0.3)
    _save(figure, path)


def _empty_figure() -> Figure:
    """Return an empty page to draw on."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 8), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Figure, path: Path) -> None:
    """Write a picture; equal ones are equal bytes.

    Raises:
        LogDirError: it cannot be written.

    """
    try:
        is_svg = path.suffix.lower() == ".svg"
        figure.savefig(path, dpi=110, metadata={"Date": None} if is_svg else None)
    except OSError as error:
        raise LogDirError(f"{path}: cannot be written: {error.strerror}", hint="give --plot another place") from error


def _label(principal: str) -> str:
    """Return a label for a legend, where a dollar sign begins a formula, and a low line at the start hides it."""
    text = principal.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text
