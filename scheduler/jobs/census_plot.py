"""A picture of a census: producers by age, and how many are left as time goes by, under each expiration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from resnap.scheduler.jobs.quota_plot import figure_of, label, save
from resnap.tiering.quota.producer_census import AGES, DAY_MS, HOUR_MS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from resnap.tiering.quota.producer_census import Census

MOST: Final = 6
_STEPS: Final = 48


def draw_census(topics: Mapping[str, Census], everybody: Census, expirations_ms: Sequence[int], path: Path) -> None:
    """Draw the ages of the topics with the most producers, and what is left of all, into ``path``.

    Raises:
        LogDirError: it cannot be written.

    """
    figure = figure_of()
    ages, left = figure.subplots(2)
    chosen = sorted(topics.items(), key=lambda item: (-item[1].producers, item[0]))
    below = np.zeros(len(everybody.ages()), np.int64)
    others = {"other topics": [census for _, census in chosen[MOST:]]} if chosen[MOST:] else {}
    for topic, counted in ({topic: [census] for topic, census in chosen[:MOST]} | others).items():
        heights = np.sum([list(one.ages().values()) for one in counted], axis=0)
        ages.bar(
            [f"< {age}" if age in AGES else age for age in everybody.ages()], heights, bottom=below, label=label(topic)
        )
        below += heights
    ages.set_ylabel("producers by age")
    if chosen:
        ages.legend(loc="upper right", fontsize="small")
    for expiration_ms in expirations_ms:
        # Whole hours are edges of bins, and so exact.
        hours = np.unique(np.linspace(0, -(-expiration_ms // HOUR_MS), _STEPS).astype(np.int64))
        counts = [everybody.producers - everybody.expired(expiration_ms, int(hour) * HOUR_MS) for hour in hours]
        left.plot(hours * HOUR_MS / DAY_MS, counts, label=f"producer.id.expiration.ms={expiration_ms}")
    left.set_ylabel("producers left")
    left.set_xlabel("days from now, if nobody writes")
    left.set_ylim(bottom=0)
    left.legend(loc="upper right", fontsize="small")
    left.grid(visible=True, alpha=0.3)
    save(figure, path)
