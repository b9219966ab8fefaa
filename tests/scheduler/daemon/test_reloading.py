"""What of a configuration holds from a SIGHUP on, and what waits for the next start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from resnap.scheduler.access.tokens import PREFIX
from resnap.scheduler.job.replaying import engine_of
from resnap.scheduler.runs.configuration import Configuration
from resnap.scheduler.runs.run import RunRequest
from resnap.scheduler.service.services import Services
from resnap.scheduler.settings.settings import AT_START, DECLARED, Settings, taken_over
from resnap.storage.errors import ConfigurationError
from tests.clocks import FixedClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

START: Final = 'engine = "local"\nstate-dir = "state"\nqueue-size = 5\nverify-crc = true\n'
OTHERWISE: Final[dict[str, Any]] = {
    "engine": "local",
    "threads": 3,
    "header_read_size": 4096,
    "split_size": 1 << 20,
    "range_size": 1 << 20,
    "ranges_in_flight": 9,
    "producers_per_task": 77,
    "spark_master": "local[7]",
    "spark_driver_memory": "3g",
    "spark_conf": {"a": "b"},
}
"""Other values for what the engine is made of."""


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    write(tmp_path, START)
    found = Services(Configuration(environment={}, directory=tmp_path), FixedClock(0))
    yield found
    found.database.close()


def write(directory: Path, text: str) -> None:
    (directory / "resnap.toml").write_text(text)


@pytest.mark.slow
def test_what_the_process_is_made_of_waits_and_is_named_until_then(services: Services, tmp_path: Path) -> None:
    write(tmp_path, f'{START}auth = "token"\nlisten = "127.0.0.1:1"\nstop-grace = "1s"\nallow-hosts = ["x"]\n')
    for _ in range(2):
        assert services.reload() == ("listen", "auth", "allow-host")
        assert (services.settings.auth, services.settings.stop_grace.total_seconds()) == ("none", 1)
    write(tmp_path, START)
    assert services.reload() == ()


def test_the_bound_of_the_queue_holds_at_once(services: Services, tmp_path: Path) -> None:
    write(tmp_path, START.replace("queue-size = 5", "queue-size = 1"))
    services.reload()
    services.worker.submit(RunRequest(kind="scan"), origin="api", principal="me")
    with pytest.raises(Exception, match="1 run waits"):
        services.worker.submit(RunRequest(kind="scan"), origin="api", principal="me")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("queue-size = \n", r"resnap\.toml is not TOML: .* line 1"),
        ("queue-size = 0\n", r"queue-size \(file .*resnap\.toml, line 1\): .* found 0"),
        ("queue-sise = 5\n", r"resnap\.toml, line 1: there is no setting 'queue_sise'"),
        ('listen = "0.0.0.0:80"\n', "could start runs, since auth is none"),
        ('log.dirs = "state"\n', "lies in the log dir"),
        (
            'allow-destinations = ["../out"]\n',
            r"allow-destinations: '.*/\.\./out': expected an absolute path without \.\.",
        ),
        ('encryption-private-key = { id = "nowhere.pem" }\n', r"nowhere\.pem"),
        ('[[schedules]]\nname = "a"\nrun = "scan"\ncron = "61 * * * *"\n', "schedule a: cron"),
        (
            '[[schedules]]\nname = "a"\nrun = "scan"\nevery = "1h"\nsettings = { as-of = "tomorrow" }\n',
            r"schedule a \(.*resnap\.toml, line 5\): as-of .*: expected now, roll or a time such as .*",
        ),
        ('[[schedules]]\nname = "a"\nrun = "tier"\nto = "memory://"\nevery = "1h"\n', "lost when the run ends"),
    ],
)
def test_an_unusable_setting_is_reported_with_its_place_and_runs_go_on_as_before(
    services: Services, tmp_path: Path, text: str, told: str
) -> None:
    before = services.settings
    write(tmp_path, text)
    with pytest.raises(ConfigurationError, match=told):
        services.reload()
    assert services.settings is before
    assert services.worker.queue_size == 5
    assert services.configuration.of(RunRequest(kind="scan")).verify_crc, "as it was put in force"


def test_a_configuration_that_is_refused_makes_no_token_valid(services: Services, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"ci viewer {PREFIX}{'s' * 40}\n")
    refused = '[[schedules]]\nname = "a"\nrun = "scan"\ncron = "61 * * * *"\n'
    write(tmp_path, f'{START}tokens-file = "{tokens}"\n{refused}')
    with pytest.raises(ConfigurationError, match="schedule a: cron"):
        services.reload()
    assert services.access.tokens.all() == []
    write(tmp_path, f'{START}tokens-file = "{tokens}"\n')
    services.reload()
    assert [token.name for token in services.access.tokens.all()] == ["ci"]


def test_a_run_uses_the_settings_in_force_and_not_what_the_file_has_become(services: Services, tmp_path: Path) -> None:
    request = RunRequest(kind="regenerate", settings={"as_of": "roll"})
    write(tmp_path, START.replace("verify-crc = true", "verify-crc = false"))
    assert services.configuration.of(request).verify_crc
    services.reload()
    assert not services.configuration.of(request).verify_crc


def test_whatever_the_engine_is_made_of_waits_for_the_next_start() -> None:
    of_engine = {name for name in AT_START if name.startswith(("spark_", "s3_")) or name in OTHERWISE}
    assert set(OTHERWISE) <= of_engine
    plain = Settings(engine="spark")
    for name, value in OTHERWISE.items():
        changed = plain.model_copy(update={name: value})
        assert _made_of(changed) != _made_of(plain), name
        assert taken_over(plain, changed)[0] == plain
    for name in set(DECLARED) - set(AT_START) - {"parallel"}:  # of uploads, which take it at once
        assert name not in _asked_for(), name


def _made_of(settings: Settings) -> tuple[object, ...]:
    engine = engine_of(settings)
    return engine.kind, engine.spark, engine.s3, engine.reading


def _asked_for() -> set[str]:
    """Return the settings that an engine is made from."""
    asked: set[str] = set()

    class Asked(Settings):
        def __getattribute__(self, name: str) -> Any:
            asked.add(name)
            return super().__getattribute__(name)

    engine_of(Asked(engine="spark"))
    return asked & set(DECLARED)
