"""Makes the command of a verb from its declaration."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING
from typing import Any

from resnap.scheduler.cli.flags import LogDirs
from resnap.scheduler.cli.invocation import Invocation
from resnap.scheduler.cli.options import with_settings
from resnap.scheduler.cli.plan_file import PlanFile, saved_plan
from resnap.scheduler.job.contract import Verb
from resnap.scheduler.job.wiring import scope_of


def command_of(verb: Verb) -> Callable[..., None]:
    """Return the command that asks for a verb: its arguments are the fields of its request, its help the docstring."""

    def ask(context: Invocation, /, **given: Any) -> int:  # noqa: ANN401 - as Typer parsed them
        sources = given.pop("sources", None)
        saved = saved_plan(given.pop("plan_file", None), sources)
        request = verb.request(scope=scope_of(context.settings, sources, saved, reads=verb.reads), saved=saved, **given)
        return context.show(verb.run(request, context), verb.view(request, context))

    named = [(name, one.kind, one.default) for name, one in verb.arguments.items()]
    named += [("sources", LogDirs, None)] if verb.reads in {"log dirs", "store"} else []
    named += [("plan_file", PlanFile, None)] if verb.carries_out_plans else []
    parameters = [inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    for name, kind, default in named:
        missing = inspect.Parameter.empty if default is MISSING else default
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=missing))
    ask.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    ask.__doc__ = verb.request.__doc__
    return with_settings(*verb.takes)(ask)
