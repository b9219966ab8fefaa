"""What another user of this machine gets out of a driver's ports, and what its blocks hold of keys."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from tests.replay.spark_cluster import bare_environment
from tests.replay.test_spark_session import run

pytestmark = [pytest.mark.slow, pytest.mark.spark]

KEY = "a key that nobody else may see"
ODD = """hunter3 \\u0041 "quoted" 'too' = : # ! $HOME é \N{GRINNING FACE}"""
ATTACK = """
import json, os, subprocess, sys
from pathlib import Path
from resnap.replay.spark.context import spark_context
from resnap.replay.spark.settings import SparkSettings
from resnap.storage.key_file import KeyFile
from resnap.storage.encryption import KeyRing, RsaKey
from resnap.storage.stores.urls import S3Settings
from resnap.storage.sources.files import Sources
from tests.replay import spark_attacker

key = KeyFile.read(Path("key.pem"))
sources = Sources(keys=KeyRing((RsaKey("key1", key),)), s3=S3Settings(customer_key=key))

def attacked(conf):
    with spark_context(SparkSettings(master="local[1]", conf=conf), os.environ) as context:
        read = context.parallelize([1], 1).map(lambda _: sources.keys.keys[0].pem.content().decode()).collect()
        listening = spark_attacker.listening_ports(context._gateway.proc.pid)
        endpoints, pythons = int(context.getConf().get("spark.driver.port")), context._gateway.gateway_parameters.port
        ports = [endpoints, *(port for port in listening if port not in (endpoints, pythons))]
        command = [sys.executable, spark_attacker.__file__, *map(str, ports)]
        ran = subprocess.run(command, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        process = Path("/proc", str(context._gateway.proc.pid))
        seen = {name: (process / name).read_text() for name in ("cmdline", "environ")}
        system = context._jvm.java.lang.System.getProperty("spark.odd name")
        return {**json.loads(ran.stdout), "read": read, "ports": listening, "stderr": ran.stderr, **seen,
                "system": system, "property": context.getConf().get("spark.odd name", None)}

# What is compressed would hide a key, too.
opened = {"spark.authenticate": "false", "spark.network.crypto.enabled": "false", "spark.broadcast.compress": "false"}
# Nor may blocks be gone: Spark removes them once the JVM has collected what they were made for.
kept = {"spark.cleaner.referenceTracking": "false"}
conf = {"spark.ssl.keyPass": "hunter2", "spark.odd name": os.environ["ODD"], "spark.driver.extraJavaOptions": "-Da=b"}
print(json.dumps({"closed": attacked(kept | conf), "open": attacked(kept | opened)}))
"""


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Give what an attack brought on a driver as it is started, and on one that admits every client."""
    directory = tmp_path_factory.mktemp("p")
    (directory / "script").mkdir()
    (directory / "script" / "key.pem").write_text(KEY)
    done = run(ATTACK, directory, {**bare_environment(directory), "PATH": os.environ["PATH"], "ODD": ODD})
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_a_driver_gives_no_block_to_another_user_and_takes_no_object(attacked: dict[str, Any]) -> None:
    closed = attacked["closed"]
    assert (closed["stderr"], len(closed["ports"])) == ("", 3), "one of them is Py4J's, which is not Spark's"
    assert closed["blocks"] == []
    assert ["Unknown challenge message" in refusal for refusal in closed["refusals"]] == [True, True]
    assert ["Unknown challenge message" in answer for answer in closed["answers"]] == [True]


def test_properties_reach_the_jvm_unchanged_and_are_in_no_command_line(attacked: dict[str, Any]) -> None:
    closed = attacked["closed"]
    assert closed["property"] == closed["system"] == ODD
    assert "hunter" not in closed["cmdline"]
    assert "hunter2" not in closed["environ"]
    assert "-Da=b" in closed["cmdline"], "what only a JVM's command line can hold"


def test_the_same_attack_succeeds_where_no_secret_is_needed(attacked: dict[str, Any]) -> None:
    assert any("replay" in block or "KeyFile" in block for block in attacked["open"]["blocks"])
    assert any("from a stranger" in answer for answer in attacked["open"]["answers"])


def test_keys_are_read_by_the_tasks_and_in_no_block(attacked: dict[str, Any]) -> None:
    assert attacked["closed"]["read"] == attacked["open"]["read"] == [KEY]
    assert any("key.pem" in block for block in attacked["open"]["blocks"])
    assert not any(KEY in block for block in attacked["open"]["blocks"])
