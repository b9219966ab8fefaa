"""The group that lists the commands of the table, and loads a command when it runs or shows its help.

A module of a command is imported when that command is called, and by nothing before. So ``resnap --help`` and the
completion of names stay quick whatever the modules import.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from resnap.scheduler.registry import COMMANDS, GROUPS, declared_at


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
        return name, load_command(command.words) if isinstance(command, _Listed) else command, rest


def argument_text(parameter: Any, ctx: Any) -> str:  # noqa: ANN401 - as Typer has them
    """Return how an argument is shown, without the Python type that Typer adds; empty for a flag."""
    is_argument = parameter.param_type_name == "argument"
    return "".join(piece.strip("{}") for piece in parameter.get_usage_pieces(ctx)) if is_argument else ""


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
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - as Typer has them
        """Write arguments and flags, those of the command itself first."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            is_argument = parameter.param_type_name == "argument"
            title = "Arguments" if is_argument else getattr(parameter, "rich_help_panel", None) or "Options"
            if record := parameter.get_help_record(ctx):
                sections.setdefault(title, []).append((argument_text(parameter, ctx) or record[0], record[1]))
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
        self.words = words

    def get_short_help_str(self, limit: int = 0) -> str:  # noqa: ARG002 - a summary is never cut
        """Return the summary."""
        return GROUPS[self.words] if self.words in GROUPS else COMMANDS[self.words].summary


@cache
def load_command(words: str) -> Any:  # noqa: ANN401 - of Typer's classes
    """Return the command, or the group of commands, that is called with ``words``."""
    if words in GROUPS:
        return CommandGroup(name=words, help=GROUPS[words], rich_markup_mode=None)
    name = words.rsplit(maxsplit=1)[-1]
    command = declared_at(words)
    if not callable(command):
        from resnap.scheduler.cli.asking import command_of  # noqa: PLC0415 - loads what only verbs need

        command = command_of(command)
    return make_command(name, command, COMMANDS[words].example)


def make_command(name: str, function: Callable[..., Any], example: str) -> Any:  # noqa: ANN401
    """Return the command that Typer makes of ``function``."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(name, cls=_Command, epilog=example)(function)
    return typer.main.get_command(app)
