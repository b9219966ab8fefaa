"""The command ``resnap``, also as ``python -m resnap``: an interrupt ends it in one line from the start."""

import os
import signal
from contextlib import suppress
from importlib import import_module
from types import FrameType
from typing import NoReturn

_STANDARD_ERROR = 2


def main() -> None:
    """Run the command line of this process."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)  # until the command line handles them itself
    import_module("resnap.scheduler.cli").main()


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    """End as the command line does; nothing has begun yet."""
    with suppress(OSError):
        os.write(_STANDARD_ERROR, b"interrupted\n")
    os._exit(143 if number == signal.SIGTERM else 130)


if __name__ == "__main__":
    main()
