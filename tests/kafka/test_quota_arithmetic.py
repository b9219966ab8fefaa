"""Token bucket and rate are Kafka's own classes, to the bit and the millisecond, over 100,000 random steps.

Heavy, and only where ``KAFKA_JARS`` names a folder with ``kafka-clients-3.9.*.jar``, or one of 4.x, and a JDK is there.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from resnap.tiering.quota.token_bucket import (
    MAX_THROTTLE_MS,
    QuotaConfig,
    RateUnit,
    SampledRate,
    TokenBucket,
    throttle_ms,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.heavy

DRIVER: Final = Path(__file__).parent / "Buckets.java"
STEPS: Final = 100_000
STEPS_OF_ONE: Final = 40
UNITS: Final = {"SECONDS": RateUnit.SECOND, "HOURS": RateUnit.HOUR}


def jars() -> Path:
    root = os.environ.get("KAFKA_JARS")
    found = sorted(Path(root).rglob("kafka-clients-*.jar")) if root else []
    if not found or shutil.which("java") is None:
        pytest.skip("NOT TESTED: Kafka's own classes need KAFKA_JARS with kafka-clients, and a JDK")
    return found[-1].parent


def drawn(dice: random.Random) -> Iterator[list[str]]:
    """Draw what happens to one quota after another: records, gaps short and long, and quotas that change."""
    for _ in range(STEPS // STEPS_OF_ONE):
        unit, samples = dice.choice(list(UNITS)), dice.choice([1, 2, 3, 10, 11, 100])
        window_ms = dice.choice([1, 1000, 7_500, 60_000, 3_600_000])
        yield ["new", unit, str(samples), str(window_ms), repr(dice.choice([0.01, 0.5, 1.0, 5.0, 50.0, 1234.567]))]
        now_ms, kind = dice.randrange(1_600_000_000_000, 1_900_000_000_000), dice.choice(["bucket", "rate"])
        for _ in range(STEPS_OF_ONE):
            now_ms += dice.choice([0, 1, dice.randrange(2 * window_ms), dice.randrange(3 * samples * window_ms)])
            if dice.random() < 0.05:
                yield ["quota", repr(dice.uniform(0.01, 200))]
            value = dice.choice([0.0, 1.0, 1.0, float(dice.randrange(1000)), dice.uniform(0, 50), -dice.uniform(0, 20)])
            yield [kind, repr(value), str(now_ms)]


def ours(steps: list[list[str]]) -> Iterator[tuple[int, int]]:
    """Do the same, and yield the bits of what is measured, and the throttle time."""
    for words in steps:
        if words[0] == "new":
            config = QuotaConfig(samples=int(words[2]), window_ms=int(words[3]), unit=UNITS[words[1]])
            bound = float(words[4])
            bucket, rate = None, SampledRate(config)
        elif words[0] == "quota":
            bound = float(words[1])
        elif words[0] == "bucket":
            value, now_ms = float(words[1]), int(words[2])
            bucket = bucket or TokenBucket(config, bound, now_ms)
            tokens = bucket.take(value, bound, now_ms)
            yield bits(tokens), throttle_ms(-tokens, bound, config.unit)
        else:
            value, now_ms = float(words[1]), int(words[2])
            rate.record(value, now_ms)
            yield bits(rate.rate(now_ms)), rate.throttle_ms(bound, now_ms)


def bits(value: float) -> int:
    return int(struct.unpack(">q", struct.pack(">d", value))[0])


@pytest.mark.parametrize("seed", [1, 2])
def test_100_000_random_steps_give_what_kafkas_own_classes_give(seed: int) -> None:
    steps = list(drawn(random.Random(seed)))
    ran = subprocess.run(
        ["java", "-cp", f"{jars()}/*", str(DRIVER)],
        input="\n".join(map(" ".join, steps)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    theirs = [tuple(map(int, line.split())) for line in ran.stdout.splitlines()]
    made = list(ours(steps))
    assert len(made) == len(theirs) == STEPS
    # Kafka's throttle times are longs until they are cut; ours stay at the most that 32 bits hold.
    assert made == [(measured, min(max(throttle, 0), MAX_THROTTLE_MS)) for measured, throttle in theirs]
