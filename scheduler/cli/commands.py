"""The table of commands, and the group that loads a command when it runs or shows its help.

To add a command, write a function with ``@with_settings(...)`` in a module that imports at its top what it needs, and
add one row to ``COMMANDS``: the words it is called with, ``module:function``, a summary of one line for the list of
commands, and an example. The function's docstring is the text of the command's own ``--help``. Then make
``docs/reference.md`` again (``python -m tests.reference``). Nothing else has to know the command.

A module of a command is imported when that command is called, and by nothing before. So ``resnap --help`` and the
completion of names stay quick whatever the modules import.
"""

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, Final, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup


class CommandRow(NamedTuple):
    """The location of a command's function, its one-line summary, and an example."""

    place: str
    summary: str
    example: str


_COMMANDS: Final = "resnap.scheduler.commands"
_JOBS: Final = "resnap.scheduler.verbs"
COMMANDS: Final[dict[str, CommandRow]] = {
    "check": CommandRow(
        f"{_JOBS}.check:check",
        "Say for each topic whether tiering can be turned on.",
        "resnap check /var/lib/kafka --server-properties /etc/kafka/server.properties",
    ),
    "scan": CommandRow(
        f"{_JOBS}.scan:scan",
        "Show where producer snapshots are missing, and what that blocks.",
        "resnap scan /var/lib/kafka --topic 'payments*'",
    ),
    "plan": CommandRow(
        f"{_JOBS}.plan:plan", "Show what a replay would read and make.", "resnap plan /var/lib/kafka --save plan.json"
    ),
    "regenerate": CommandRow(
        f"{_JOBS}.regenerate:regenerate",
        "Rebuild producer snapshots into a directory or store.",
        "resnap regenerate /var/lib/kafka --into /srv/staged",
    ),
    "tier": CommandRow(
        f"{_JOBS}.tier:tier",
        "Ship eligible segments with their snapshots to a store.",
        "resnap tier /var/lib/kafka --to s3://tiered/cluster-1 --dry-run",
    ),
    "verify": CommandRow(
        f"{_JOBS}.verify:verify",
        "Compare snapshots with a replay, or read a store back.",
        "resnap verify s3://tiered/cluster-1 --since 7d",
    ),
    "repair": CommandRow(
        f"{_JOBS}.repair:repair",
        "Replace wrong snapshots in a store.",
        "resnap repair s3://tiered/cluster-1 --dry-run",
    ),
    "explain": CommandRow(
        f"{_JOBS}.explain:explain",
        "Show the batches that made each entry of a snapshot.",
        "resnap explain /var/lib/kafka payments-0 4200 --producer-id 7",
    ),
    "install": CommandRow(
        f"{_JOBS}.install:install",
        "Install snapshots beside the segments of a stopped broker.",
        "resnap install /srv/staged /var/lib/kafka",
    ),
    "restore": CommandRow(
        f"{_JOBS}.restore:restore",
        "Restore partition directories from shipped segments.",
        "resnap restore s3://tiered/cluster-1 --into /var/lib/kafka --topic payments",
    ),
    "retain": CommandRow(
        f"{_JOBS}.retain:retain",
        "Apply a retention to what was shipped.",
        "resnap retain s3://tiered/cluster-1 --retention 90d --delete",
    ),
    "gc": CommandRow(
        f"{_JOBS}.gc:gc",
        "Delete what killed runs have left in a store.",
        "resnap gc s3://tiered/cluster-1 --older-than 7d --delete",
    ),
    "inspect": CommandRow(
        f"{_JOBS}.inspect.file:inspect_file",
        "Show any file of a log dir or a store.",
        "resnap inspect /var/lib/kafka/payments-0/00000000000000004200.snapshot",
    ),
    "doctor": CommandRow(
        f"{_JOBS}.doctor:doctor",
        "Check what a run needs: Java, log dirs, store, clock.",
        "resnap doctor /var/lib/kafka s3://tiered/cluster-1",
    ),
    "version": CommandRow(
        f"{_COMMANDS}.about:show_version",
        "Print the versions of Resnap and of what it runs on.",
        "resnap version --output json",
    ),
    "config show": CommandRow(
        f"{_COMMANDS}.about:show_config",
        "Print every setting, its value and its origin.",
        "resnap config show --config /etc/resnap.toml",
    ),
    "controller image": CommandRow(
        f"{_JOBS}.controller:show_image",
        "Show the cluster that a metadata log describes.",
        "resnap controller image /var/lib/kafka/__cluster_metadata-0",
    ),
    "controller producer-ids": CommandRow(
        f"{_JOBS}.controller:show_producer_ids",
        "Show which producer ids were used.",
        "resnap controller producer-ids /var/lib/kafka",
    ),
    "controller config": CommandRow(
        f"{_JOBS}.controller:show_brokers_config",
        "Show the settings brokers use.",
        "resnap controller config /var/lib/kafka --server-properties /etc/kafka/server.properties",
    ),
    "controller audit": CommandRow(
        f"{_JOBS}.controller_audit:audit_log_dir",
        "Check that producer ids were allocated.",
        "resnap controller audit /var/lib/kafka",
    ),
    "remote status": CommandRow(
        f"{_JOBS}.remote_status:show_status",
        "Show what brokers know to be in remote storage.",
        "resnap remote status /var/lib/kafka --store s3://tiered/cluster-1",
    ),
    "replicas": CommandRow(
        f"{_JOBS}.replicas:replicas",
        "Find replicas that lost producer state, on a running cluster.",
        "resnap replicas --bootstrap-server localhost:9092",
    ),
    "fleet status": CommandRow(
        f"{_JOBS}.fleet_status:show_fleet",
        "Say for each topic of the cluster whether tiering can be turned on.",
        "resnap fleet status --config /etc/resnap.toml --bootstrap-server localhost:9092",
    ),
    "fleet gate": CommandRow(
        f"{_JOBS}.fleet_gate:may_stop",
        "Say whether a broker may be stopped now.",
        "resnap fleet gate --broker 2 --config /etc/resnap.toml --bootstrap-server localhost:9092",
    ),
    "announce": CommandRow(
        f"{_JOBS}.announce:announce",
        "Make shipped segments visible to brokers.",
        "resnap announce s3://tiered/cluster-1 --bootstrap-server localhost:9092 --publish",
    ),
    "producer census": CommandRow(
        f"{_JOBS}.census:count_producers",
        "Count the producers a broker holds, by topic and age.",
        "resnap producer census /var/lib/kafka --under 3600000",
    ),
    "producer simulate": CommandRow(
        f"{_JOBS}.producer:simulate",
        "Show what a broker answers to a script of appends.",
        "resnap producer simulate docs/examples/expired-producer.jsonl",
    ),
    "quota set": CommandRow(
        f"{_JOBS}.quota:set_quota", "Set the producer_ids_rate of a user.", "resnap quota set 100 --user alice"
    ),
    "quota delete": CommandRow(
        f"{_JOBS}.quota:delete_quota", "Delete the producer_ids_rate of a user.", "resnap quota delete --user alice"
    ),
    "quota describe": CommandRow(
        f"{_JOBS}.quota:describe_quotas", "Show the quotas that are set, and where.", "resnap quota describe"
    ),
    "quota simulate": CommandRow(
        f"{_JOBS}.quota_simulate:simulate_quota",
        "Show which principals a quota would have throttled.",
        "resnap quota simulate /var/lib/kafka --rate 100",
    ),
    "quota advise": CommandRow(
        f"{_JOBS}.quota_advise:advise_quota",
        "Find a rate that throttles few principals.",
        "resnap quota advise /var/lib/kafka --share 0.95",
    ),
    "serve": CommandRow(
        f"{_COMMANDS}.serve:serve",
        "Run the service: schedules, HTTP API and web page.",
        "resnap serve --config /etc/resnap.toml",
    ),
    "runs list": CommandRow(
        f"{_COMMANDS}.runs:list_runs",
        "List the runs of the service, the newest first.",
        "resnap runs list --state failed",
    ),
    "runs show": CommandRow(
        f"{_COMMANDS}.runs:show_run", "Show one run, or what it did.", "resnap runs show 01jz3e8y6t"
    ),
    "token create": CommandRow(
        f"{_COMMANDS}.token:create_token",
        "Create a token, and show it once.",
        "resnap token create ci --role operator --expires 30d",
    ),
    "token list": CommandRow(
        f"{_COMMANDS}.token:list_tokens", "List all tokens with their roles and states.", "resnap token list"
    ),
    "token revoke": CommandRow(
        f"{_COMMANDS}.token:revoke_token",
        "Revoke a token and the sessions that began with it.",
        "resnap token revoke ci",
    ),
    "demo": CommandRow(f"{_JOBS}.demo.story:demo", "Show Resnap at work on a generated log.", "resnap demo"),
}
"""By the words a command is called with, in the order in which ``resnap --help`` lists them."""
GROUPS: Final = {
    "config": "Settings, and where they come from.",
    "controller": "The contents of a cluster's metadata log.",
    "remote": "Remote storage as brokers see it.",
    "fleet": "All brokers of a cluster at once, through the services beside them.",
    "producer": "Producer ids: who holds them, and how a broker answers.",
    "quota": "Limits on how many new producer ids a user may use (KIP-936).",
    "runs": "Runs of the service, past and waiting.",
    "token": "Tokens for the HTTP API and the web page.",
}
"""Summaries of the words that group several commands."""


class CommandGroup(TyperGroup):
    """Lists commands from the table, and loads one when it is called."""

    def __init__(self, **attributes: Any) -> None:  # noqa: ANN401 - as Typer has them
        super().__init__(**attributes)
        above = "" if self.name in {None, "", "resnap"} else f"{self.name} "
        names = dict.fromkeys(words.removeprefix(above).split()[0] for words in COMMANDS if words.startswith(above))
        self.commands = {name: _Listed(above + name, name) for name in names}

    def resolve_command(self, ctx: typer.Context, args: list[str]) -> Any:  # type: ignore[override]  # noqa: ANN401
        """Return the name of a command, the command itself, and its arguments."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, _Listed) else command, rest


def written(parameter: Any, ctx: Any) -> str:  # noqa: ANN401 - as Typer has them
    """Return how an argument is shown, without the Python type that Typer adds; empty for a flag."""
    is_argument = parameter.param_type_name == "argument"
    return "".join(one.strip("{}") for one in parameter.get_usage_pieces(ctx)) if is_argument else ""


class _Command(TyperCommand):
    """A command whose help lists flags under the headings of their settings, and that takes no empty argument."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - as Typer has them
        """Parse the command line.

        Raises:
            typer.BadParameter: an argument is empty, as an unset variable of the shell is; it would be taken for the
                current directory.

        """
        given = self.make_parser(ctx).parse_args(list(args))[0]
        parameters: list[Any] = self.get_params(ctx)
        for parameter in parameters:
            is_setting = getattr(parameter, "rich_help_panel", None) is not None
            value = given.get(parameter.name)
            if not is_setting and (value == "" or (isinstance(value, list | tuple) and "" in value)):
                raise typer.BadParameter("it is empty: a shell variable may not be set", ctx=ctx, param=parameter)
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ANN401 - as Typer has them
        """Return the words of the usage line; required arguments are without braces."""
        return [one.strip("{}") for one in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - as Typer has them
        """Write arguments and flags, those of the command itself first."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            is_argument = parameter.param_type_name == "argument"
            title = "Arguments" if is_argument else getattr(parameter, "rich_help_panel", None) or "Options"
            if record := parameter.get_help_record(ctx):
                sections.setdefault(title, []).append((written(parameter, ctx) or record[0], record[1]))
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401, ARG002
        """Write the example in one line, however long it is."""
        with formatter.section("Example"):
            formatter.write(f"  {self.epilog}\n")


class _Listed(TyperCommand):
    """A command that is known only by its row."""

    def __init__(self, words: str, name: str) -> None:
        super().__init__(name)
        self._words = words

    def get_short_help_str(self, limit: int = 0) -> str:  # noqa: ARG002 - a summary is never cut
        """Return the summary."""
        return GROUPS[self._words] if self._words in GROUPS else COMMANDS[self._words].summary

    def load(self) -> Any:  # noqa: ANN401
        """Return the command itself; its module is imported here."""
        return load_command(self._words)


def load_command(words: str) -> Any:  # noqa: ANN401 - of Typer's classes
    """Return the command, or the group of commands, that is called with ``words``."""
    if words in GROUPS:
        return CommandGroup(name=words, help=GROUPS[words], rich_markup_mode=None)
    module, _, function = COMMANDS[words].place.partition(":")
    return make_command(words.rsplit(maxsplit=1)[-1], getattr(import_module(module), function), COMMANDS[words].example)


def make_command(name: str, function: Callable[..., Any], example: str) -> Any:  # noqa: ANN401
    """Return the command that Typer makes of ``function``."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(name, cls=_Command, epilog=example)(function)
    return typer.main.get_command(app)


def all_commands() -> Iterator[tuple[str, Any]]:
    """Yield every command with the words it is called with; all their modules are imported."""
    for words in COMMANDS:
        yield words, load_command(words)
