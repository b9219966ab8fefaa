"""The service's log: one event per line on standard error, as JSON or as text.

An event is a constant sentence and values by name. While a run or a partition is worked on, its id is bound, and
everything that is logged meanwhile has it, by libraries too: they log by Python's own ``logging``, of which what is a
warning or worse is taken over in the same form. Secrets are masked last, in whatever text comes out, tracebacks
included: by the names that values stand under, and in running text, since libraries quote requests in their messages.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import structlog

from resnap.scheduler.settings.values import MASK, is_secret_name, redact

if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from contextlib import AbstractContextManager
    from typing import Any, TextIO

    from structlog.stdlib import BoundLogger
    from structlog.typing import EventDict, Processor

LogFormat: TypeAlias = Literal["auto", "json", "console"]
OURS: Final = ("resnap",)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_FIRST: Final = ("timestamp", "level", "logger", "event", "run", "partition")
_MANY_LINES: Final = frozenset({"exception", "stack"})


def set_up(stream: TextIO, form: LogFormat, *, is_verbose: bool = False) -> None:
    """Log to ``stream`` from now on, for this whole process: our packages from INFO on, or DEBUG if verbose.

    ``auto`` is ``console`` on a terminal, else ``json``. Called once when a service starts, and again when its settings
    have changed. An HTTP server must be set to leave logging alone (uvicorn: ``log_config=None``).
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_formatter(("console" if stream.isatty() else "json") if form == "auto" else form))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for package in OURS:
        logging.getLogger(package).setLevel(logging.DEBUG if is_verbose else logging.INFO)
    logging.captureWarnings(capture=True)
    threading.excepthook = _log_end_of_thread
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_common(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )


def logger(name: str) -> BoundLogger:
    """Return the logger of a module (``__name__``): ``logger.info("run began", kind="tier")``."""
    log: BoundLogger = structlog.stdlib.get_logger(name)
    return log


def bound(**values: object) -> AbstractContextManager[None]:
    """Give everything that is logged in this thread or task meanwhile these values: ``bound(run=run.id)``."""
    return structlog.contextvars.bound_contextvars(**values)


def _common() -> list[Processor]:
    """Return what makes an event, before its form matters."""
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]


def _formatter(form: LogFormat) -> logging.Formatter:
    to_read = structlog.dev.ConsoleRenderer(
        colors=False, sort_keys=False, pad_event_to=0, exception_formatter=structlog.dev.plain_traceback
    )
    endings: dict[str, list[Processor]] = {
        "json": [structlog.processors.JSONRenderer()],
        "console": [_in_one_line, to_read],
    }
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*_common(), structlog.stdlib.ExtraAdder()],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,  # without the values of local variables
            _without_secrets,
            *endings[form],
        ],
    )


def _without_secrets(_logger: object, _method: str, event: EventDict) -> MutableMapping[str, Any]:
    """Mask secrets, and put the same keys first in every line."""
    ranks = {key: rank for rank, key in enumerate(_FIRST)}
    ordered = sorted(event, key=lambda key: ranks.get(key, len(ranks)))
    return {key: redacted_value(key, event[key]) for key in ordered}


def _in_one_line(_logger: object, _method: str, event: EventDict) -> MutableMapping[str, Any]:
    """Write control characters as escapes, so that no input can pose as a line of its own; JSON does by itself."""
    return {key: value if key in _MANY_LINES else _escape(value) for key, value in event.items()}


def _escape(value: object) -> object:
    if not isinstance(value, str):
        return value
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), value)


def _log_end_of_thread(ended: threading.ExceptHookArgs) -> None:
    """Log the error that ended a thread, which Python would print in lines of its own."""
    if ended.exc_value is not None and ended.exc_type is not SystemExit:
        name = ended.thread.name if ended.thread else "unknown"
        logger(__name__).critical("a thread has ended with an error", thread=name, exc_info=ended.exc_value)


_COUNTS: Final = frozenset({"secretsLeftOut", "scramCredentials"})
"""Names that count secrets, and are none."""


def redacted_value(name: str, value: object) -> object:
    """Return what is logged under ``name``, down to the last text in it, without secrets."""
    if isinstance(value, Mapping):
        return {str(key): redacted_value(str(key), entry) for key, entry in value.items()}
    if isinstance(value, tuple | list | set | frozenset):
        return [redacted_value(name, entry) for entry in value]
    if value is None or name in _COUNTS:
        return value
    if is_secret_name(name):
        return MASK
    return value if isinstance(value, bool | int | float) else redact(str(value))
