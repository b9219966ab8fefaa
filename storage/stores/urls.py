"""Opens the store at a URL; users write URLs, plans record them, and executors receive them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from resnap.storage.errors import UsageError
from resnap.storage.stores.local import LocalObjectStore
from resnap.storage.stores.memory import MemoryObjectStore
from resnap.storage.stores.protocol import is_safe_path
from resnap.storage.stores.s3_settings import S3Settings

if TYPE_CHECKING:
    from resnap.storage.stores.protocol import ObjectStore

FORMS: Final = "a store is s3://BUCKET[/PREFIX], file:///ABSOLUTE/DIRECTORY or memory://NAME[/PREFIX]"
_SCHEMES: Final = frozenset({"s3", "file", "memory"})
_GOOGLE: Final = (
    "a bucket of Google's is reached as S3: s3://BUCKET[/PREFIX] with --s3-endpoint-url https://storage.googleapis.com"
    " and an HMAC key"
)
_HADOOP: Final = "that is what Hadoop calls it: write s3://BUCKET[/PREFIX]"
_SERVER: Final = "write s3://BUCKET[/PREFIX], with the server's address as --s3-endpoint-url"
_BY_S3: Final = {
    **dict.fromkeys(("gs", "gcs"), _GOOGLE),
    **dict.fromkeys(("s3a", "s3n"), _HADOOP),
    **dict.fromkeys(("http", "https"), _SERVER),
}
"""What to do with schemes whose stores speak S3, too."""
_NEARLY = re.compile(r"(s3|file|memory|s3a|s3n|gs|gcs):(?!//)", re.IGNORECASE)
"""How a URL begins whose slashes are missing."""
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}")


def open_store(url: str, s3: S3Settings | None = None) -> ObjectStore:
    """Open the store at ``url``; no request is sent yet, so a wrong bucket shows at the first use.

    ``s3`` overrides the settings that boto3 takes from its environment. Like the tools of AWS, ``s3://`` URLs are taken
    literally, while ``file://`` URLs are percent-decoded.

    Raises:
        UsageError: not a URL of a known form.
        ConfigurationError: the S3 settings cannot be used.

    """
    scheme, _, rest = url.partition("://")
    if "@" in rest and not {"@", ":"}.isdisjoint(rest.partition("/")[0]):
        # Not repeated: what is printed here is kept in logs.
        hint = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        raise UsageError("a store URL with credentials in it: expected none", hint=hint)
    check_form(url)
    if (path := local_path(url)) is not None:
        return LocalObjectStore(path)
    name, prefix = _name_and_prefix(url, rest)
    if scheme.lower() == "memory":
        return MemoryObjectStore(name, prefix)
    if not _BUCKET.fullmatch(name):
        raise UsageError(f"store URL {url!r}: {name!r} is not the name of a bucket", hint=FORMS)
    if "?" in prefix or "#" in prefix:
        hint = "endpoint, region and the like are settings, not parts of the URL"
        raise UsageError(f"store URL {url!r}: expected a prefix without ? and #", hint=hint)
    # boto3 takes a second to import; commands that do not use S3 should not wait for it.
    from resnap.storage.stores.s3 import S3ObjectStore  # noqa: PLC0415

    return S3ObjectStore(name, prefix, s3 or S3Settings())


def check_form(url: str) -> None:
    """Check that ``url`` has a form that ``open_store`` supports.

    Raises:
        UsageError: it has not; it may be a path.

    """
    scheme, separator, _ = url.partition("://")
    if separator and scheme.lower() in _SCHEMES:
        return
    if separator:
        hint = FORMS
    elif (nearly := _NEARLY.match(url)) is None:
        hint = f"for this directory give {Path(url).absolute().as_uri()}; {FORMS}"
    else:
        scheme, rest = nearly[1], url[nearly.end() :]
        is_file = scheme.lower() == "file"
        meant = Path(rest).absolute().as_uri() if is_file else f"{scheme.lower()}://{rest.strip('/')}"
        hint = f"did you mean {meant}? {FORMS}"
    hint = _BY_S3.get(scheme.lower(), hint)
    raise UsageError(f"store URL {url!r}: unknown form", hint=hint)


def split_object_url(url: str) -> tuple[str, str]:
    """Return the URL of the store that holds the object at ``url``, and the object's key there.

    Raises:
        UsageError: not the URL of an object.

    """
    scheme, _, rest = url.partition("://")
    name, _, key = rest.partition("/")
    if not name or not key or key.endswith("/"):
        raise UsageError(f"{url!r} is not the URL of an object", hint=FORMS)
    return f"{scheme}://{name}", key


def local_path(url: str) -> Path | None:
    """Return the path of a ``file://`` URL, None for any other URL.

    Raises:
        UsageError: a ``file://`` URL without an absolute path.

    """
    if not url.lower().startswith("file://"):
        return None
    if not {"\t", "\n", "\r"}.isdisjoint(url):  # which urlsplit drops without a word
        raise UsageError(f"store URL {url!r}: expected no line break or tab; write them as %0A and %09", hint=FORMS)
    parts = urlsplit(url)
    if parts.netloc not in {"", "localhost"} or not parts.path.startswith("/"):
        raise UsageError(f"store URL {url!r}: expected an absolute path after file://", hint=FORMS)
    if parts.query or parts.fragment or "\0" in unquote(parts.path):
        raise UsageError(f"store URL {url!r}: expected nothing but a path; write ? as %3F and # as %23", hint=FORMS)
    return Path(unquote(parts.path))


def without_slash(url: str) -> str:
    """Return ``url`` without trailing slashes, but for that of the root directory."""
    scheme, separator, rest = url.partition("://")
    root = rest[:1] if scheme.lower() == "file" else ""
    return f"{scheme}{separator}{rest.rstrip('/') or root}"


def is_store_url(text: str) -> bool:
    """Whether ``text`` is meant as a URL of a store, not as a path; its form may be wrong."""
    return "://" in text or _NEARLY.match(text) is not None


def _name_and_prefix(url: str, rest: str) -> tuple[str, str]:
    name, _, prefix = rest.partition("/")
    prefix = prefix.rstrip("/")
    if not name:
        raise UsageError(f"store URL {url!r}: a name is missing after ://", hint=FORMS)
    if prefix and not is_safe_path(prefix):
        raise UsageError(f"store URL {url!r}: the prefix has an empty part, '.' or '..'", hint=FORMS)
    return name, prefix
