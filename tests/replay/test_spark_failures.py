"""What an interrupt or a dying JVM breaks is reported once, and not by py4j."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

CALLS_BREAK: Final = """
import logging
from resnap.replay.spark.failures import without_tracebacks_of_py4j

calls = logging.getLogger("py4j.clientserver")
with without_tracebacks_of_py4j():
    logging.basicConfig()  # what whoever logs to the root logger does first, as py4j
    calls.error("broken")
    logging.getLogger("of somebody else").error("heard")
calls.error("of another session")
with without_tracebacks_of_py4j():
    assert len(logging.getLogger().filters) == 1, "each session adds one"
"""


def test_py4j_is_not_logged_even_if_the_root_logger_has_a_handler() -> None:
    ran = subprocess.run([sys.executable, "-c", CALLS_BREAK], capture_output=True, text=True, check=True)
    assert ran.stderr == "ERROR:of somebody else:heard\nERROR:py4j.clientserver:of another session\n"
