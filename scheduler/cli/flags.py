"""The settings that commands offer as flags, by group; each flag is generated from its setting's declaration.

``with_settings`` (``options``) adds the flags of groups to a command. A flag that was not given is None, so that the
setting's own default applies.
"""

from typing import Annotated, Any, Final, Literal, TypeAlias

import typer

from resnap.scheduler.settings import replay
from resnap.scheduler.settings.declaration import SettingGroup, declared_in
from resnap.scheduler.settings.service import ServiceSettings
from resnap.scheduler.settings.settings import DECLARED, OutputSettings
from resnap.scheduler.settings.store import ShippingSettings, StoreSettings

Group: TypeAlias = tuple[str, ...]
"""Names of settings."""


def names_in(settings: type[SettingGroup]) -> Group:
    """Return the names of the settings of a class that have a flag."""
    return tuple(setting.name for setting in declared_in(settings) if setting.flag)


COMMON: Final = names_in(OutputSettings)
DUMPED: Final = ("output",)
"""For a command that can also print as Kafka's dump tool does."""
TOPIC: Final = ("topics", "exclude_topics")
PARTITIONS: Final = (*TOPIC, "partitions", "high_watermark")
KEY_PREFIX: Final = ("key_prefix",)
REMOTE: Final = ("remote", *KEY_PREFIX)
SOURCE: Final = (*names_in(replay.SelectionSettings), *KEY_PREFIX)
CLUSTER: Final = ("bootstrap_server", "command_config", "kafka_version")
COPYING_IN_TIME: Final = ("copy_overdue_after",)
METADATA: Final = ("metadata_log",)
SERVER: Final = ("server_properties",)
RULES: Final = (*names_in(replay.BrokerSettings), "as_of", "max_reach_back", "full")
"""What a plan is made by."""
CHECKING: Final = ("verify_crc",)
SPARK: Final = ("spark_master", "spark_driver_memory", "spark_conf")
REPLAY: Final = (*RULES, *CHECKING, *SPARK)
ENGINE: Final = ("engine",)
READING: Final = names_in(replay.ReadingSettings)
MEMORY: Final = names_in(replay.RunCacheSettings)
STATE: Final = ("state_dir",)
WRITE: Final = names_in(replay.WritingSettings)
COPYING: Final = ("parallel", "bwlimit")
"""For commands that copy segments, without how they are laid out."""
UPLOAD: Final = names_in(ShippingSettings)
STORE: Final = names_in(StoreSettings)
S3: Final = tuple(name for name in STORE if name.startswith("s3_"))
"""For commands that open no segment."""
SERVE: Final = names_in(ServiceSettings)
ALL: Final = (*SOURCE, *CLUSTER, *COPYING_IN_TIME, *REPLAY, *ENGINE, *READING, *MEMORY, *WRITE, *UPLOAD, *STORE, *SERVE)

LogDirs: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(metavar="LOG_DIR", help="Log dirs, partition directories, or URLs; the default is log.dirs."),
]


def flag_annotation(name: str, *, may_dump: bool) -> Any:  # noqa: ANN401 - a type
    """Return the annotation by which Typer makes the flag of a setting; ``dump-log`` is for few commands."""
    one = DECLARED[name]
    kind = one.command_line_type()
    if name == "output" and not may_dump:
        kind = Literal["table", "json", "ndjson"]
    spelled = f"{one.flag}/--no-{one.flag.removeprefix('--')}" if kind is bool else one.flag
    option = typer.Option(
        *filter(None, (spelled, one.setting.short)),
        help=f"{one.setting.description.rstrip('.')}; the default is {one.default}." if one.default
        else one.setting.description,
        metavar=one.metavar,
        show_default=False,
        rich_help_panel=one.group.title,
    )  # fmt: skip
    return Annotated[kind | None, option]
