"""The errors and warnings for a configuration of the service that cannot work, or does nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from resnap.scheduler.access.roles import Role
from resnap.scheduler.runs.configuration import Configuration
from resnap.scheduler.service.services import Services, warnings
from resnap.storage.errors import ConfigurationError
from tests.clocks import FixedClock

if TYPE_CHECKING:
    from pathlib import Path


def configuration(directory: Path, text: str, **flags: object) -> Configuration:
    (directory / "logs").mkdir()
    (directory / "resnap.toml").write_text(text)
    given = {"engine": "local", "state_dir": str(directory / "state"), **flags}
    return Configuration(flags=given, environment={}, directory=directory)


@pytest.mark.parametrize("inside", ["logs", "logs/state", "link/state"])
def test_a_state_directory_in_a_log_dir_is_refused_and_not_made(tmp_path: Path, inside: str) -> None:
    (tmp_path / "link").symlink_to("logs")
    asked = configuration(tmp_path, f'log.dirs = "{tmp_path}/logs"', state_dir=str(tmp_path / inside))
    with pytest.raises(ConfigurationError, match="a broker does not start beside it"):
        Services(asked, FixedClock(0))
    assert not list((tmp_path / "logs").iterdir())


def test_a_schedule_that_ships_into_memory_is_refused(tmp_path: Path) -> None:
    asked = configuration(tmp_path, '[[schedules]]\nname = "a"\nrun = "tier"\nevery = "1h"\nto = "memory://x"\n')
    with pytest.raises(ConfigurationError, match=r"schedule a: .* lost when the run ends") as refused:
        Services(asked, FixedClock(0))
    assert "s3://BUCKET" in str(refused.value.hint)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ('to = "s4://bucket"', "unknown form"),
        ('to = "s3://b"', "is not the name of a bucket"),
        ('to = "s3://bucket/a//b"', "empty part"),
        ('to = "file://relative/path"', "absolute path"),
        ('to = "https://bucket.s3.amazonaws.com/x"', "unknown form"),
        ('to = "s3://key:secret@bucket"', "credentials"),
        ('to = "/srv/store"', "unknown form"),
        ('to = "s3://bucket"\nsources = ["hdfs://x/y"]', "unknown form"),
    ],
)
def test_a_schedule_whose_store_cannot_be_is_refused(tmp_path: Path, place: str, said: str) -> None:
    asked = configuration(tmp_path, f'[[schedules]]\nname = "a"\nrun = "tier"\nevery = "1h"\n{place}\n')
    with pytest.raises(ConfigurationError, match=f"schedule a: .*({said})") as refused:
        Services(asked, FixedClock(0))
    assert "secret" not in str(refused.value)


def test_a_wrong_setting_of_a_schedule_is_said_to_come_from_there(tmp_path: Path) -> None:
    schedule = '[[schedules]]\nname = "a"\nrun = "scan"\nevery = "1h"\nsettings = { as-of = "yesterday" }\n'
    with pytest.raises(ConfigurationError, match=r"schedule a .*line 5\): as-of \(setting of this run\): expected now"):
        Services(configuration(tmp_path, schedule), FixedClock(0))


@pytest.mark.parametrize(
    ("text", "has_tokens", "said"),
    [
        ('auth = "token"', False, ["resnap token create", "nothing to scan"]),
        ("", True, ["nothing to scan"]),
        ('log.dirs = "logs"', False, ["scanned automatically"]),
        ('log.dirs = "logs"\n[[schedules]]\nname = "a"\nrun = "scan"\nevery = "1h"\n', False, []),
    ],
)
def test_what_does_nothing_is_warned_of(tmp_path: Path, text: str, has_tokens: bool, said: list[str]) -> None:
    found = list(warnings(configuration(tmp_path, text).load(), has_tokens=has_tokens))
    assert len(found) == len(said)
    assert all(part in warning for part, warning in zip(said, found, strict=True))


def test_a_schedule_of_replicas_without_a_cluster_is_refused_at_the_start(tmp_path: Path) -> None:
    schedule = '[[schedules]]\nname = "compare"\nrun = "replicas"\nevery = "1h"\n'
    with pytest.raises(ConfigurationError, match=r"schedule compare: .* none is named"):
        Services(configuration(tmp_path, schedule), FixedClock(0))


def test_a_token_with_a_role_of_a_later_release_is_named_and_stops_no_service(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    services = Services(configuration(tmp_path, "", listen="127.0.0.1:0"), FixedClock(0))
    services.access.tokens.create("ci", Role.ADMIN)
    with services.database.write() as connection:
        connection.execute("UPDATE tokens SET role = 'auditor'")
    services.start()
    assert services.stop()
    assert "the token 'ci' has the role 'auditor', which this release does not know" in caplog.text
