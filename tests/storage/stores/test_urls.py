from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from resnap.storage.errors import ConfigurationError, UsageError
from resnap.storage.stores.local import LocalObjectStore
from resnap.storage.stores.memory import MemoryObjectStore
from resnap.storage.stores.s3 import S3ObjectStore
from resnap.storage.stores.s3_settings import S3Settings
from resnap.storage.stores.urls import is_store_url, open_store, without_slash
from tests.cases import each

if TYPE_CHECKING:
    from pathlib import Path


@each(
    ("url", "kind", "canonical"),
    [
        ("memory://name", MemoryObjectStore, "memory://name"),
        ("memory://name/a/b/", MemoryObjectStore, "memory://name/a/b"),
        ("file:///srv/dir", LocalObjectStore, "file:///srv/dir"),
        ("file:///srv/dir/", LocalObjectStore, "file:///srv/dir"),
        ("file://localhost/srv/a%20b", LocalObjectStore, "file:///srv/a%20b"),
        ("file:///", LocalObjectStore, "file:///"),
        ("s3://bucket", S3ObjectStore, "s3://bucket"),
        ("s3://bucket/", S3ObjectStore, "s3://bucket"),
        ("S3://my.bucket-1/a/b c%20/", S3ObjectStore, "s3://my.bucket-1/a/b c%20"),
    ],
)
def test_a_url_opens_its_kind_of_store_and_the_stores_own_url_opens_it_again(
    url: str, kind: type, canonical: str
) -> None:
    store = open_store(url)
    assert type(store) is kind
    assert store.url == canonical
    assert open_store(store.url).url == canonical


@each(
    "url",
    [
        "", "/srv/dir", "srv", "s3:bucket", "s3:/bucket", "gs://bucket", "://x", "s3://", "s3:///prefix", "memory://",
        "s3://b", "s3://bucket name/x", "s3://bucket//x", "s3://bucket/a/../b", "s3://bucket/a?endpoint=x",
        "s3://bucket/a#b", "file://dir/below", "file://", "file:///srv/a?b", "file:///srv/a#b", "file:///srv/%00",
        "file:///srv/a\nb", "file:///srv/a\tb",
        "memory://name//x", "memory://name/./x",
    ],
)  # fmt: skip
def test_an_invalid_store_url_is_refused_with_a_hint(url: str) -> None:
    with pytest.raises(UsageError, match="store URL") as raised:
        open_store(url)
    assert raised.value.hint
    assert raised.value.exit_code == 2


def test_the_url_of_a_directory_is_given_where_its_path_is() -> None:
    with pytest.raises(UsageError, match="unknown form") as raised:
        open_store("/srv/store")
    assert "file:///srv/store;" in str(raised.value.hint)


def test_a_relative_path_after_file_is_meant_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="unknown form") as raised:
        open_store("file:store")
    assert f"did you mean {(tmp_path / 'store').as_uri()}?" in str(raised.value.hint)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3:/bucket/x", "did you mean s3://bucket/x?"),
        ("S3:bucket", "did you mean s3://bucket?"),
        ("file:/srv/store/", "did you mean file:///srv/store?"),
        ("memory:name", "did you mean memory://name?"),
        ("s3a:/bucket", "write s3://BUCKET"),
        ("gs:/bucket", "https://storage.googleapis.com"),
    ],
)
def test_a_url_that_lacks_slashes_is_no_path(url: str, said: str) -> None:
    assert is_store_url(url)
    with pytest.raises(UsageError, match="unknown form") as raised:
        open_store(url)
    assert said in str(raised.value.hint)


@pytest.mark.parametrize(
    "url", ["s3://user:hidden@bucket/x", "s3://user:hid/hidden@bucket", "https://user:hidden@host/bucket"]
)
def test_credentials_in_a_url_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UsageError, match="credentials") as raised:
        open_store(url)
    assert "hidden" not in f"{raised.value} {raised.value.hint}"


def test_credentials_in_an_endpoint_are_refused_and_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "http://user:hidden@127.0.0.1:1"
    with pytest.raises(ConfigurationError, match="credentials") as raised:
        open_store("s3://bucket/x", S3Settings(endpoint_url=url, region="us-east-1"))
    assert "hidden" not in f"{raised.value} {raised.value.hint}"
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", url)
    with pytest.raises(ConfigurationError, match="credentials"):
        open_store("s3://bucket/x", S3Settings(region="us-east-1"))


def test_slashes_at_the_end_go_but_that_of_the_root_stays() -> None:
    urls = ["s3://bucket/a//", "s3://bucket/", "file:///data/", "file:///", "s3://"]
    assert [*map(without_slash, urls)] == ["s3://bucket/a", "s3://bucket", "file:///data", "file:///", "s3://"]


def test_a_path_is_not_a_store_url() -> None:
    assert is_store_url("file:///srv")
    assert not is_store_url("/var/lib/kafka")


def test_a_directory_opened_by_url_is_that_directory(tmp_path: Path) -> None:
    folder = tmp_path / "with space, % and #"
    store = open_store(folder.as_uri())
    store.put("a/key", b"x")
    assert (folder / "a/key").read_bytes() == b"x"
    assert open_store(store.url + "/a").get("key") == b"x"


def test_settings_reach_the_s3_store() -> None:
    store = open_store("s3://bucket", S3Settings(endpoint_url="http://127.0.0.1:1", region="eu-north-1"))
    assert isinstance(store, S3ObjectStore)
    assert store._client.meta.endpoint_url == "http://127.0.0.1:1"
    assert store._client.meta.region_name == "eu-north-1"


def test_boto3_is_not_imported_before_an_s3_store_is_opened() -> None:
    code = (
        "import sys, resnap.storage.stores.urls as urls; urls.open_store('memory://x'); print('boto3' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


def test_a_bucket_of_google_is_reached_as_s3() -> None:
    with pytest.raises(UsageError) as caught:
        open_store("gs://bucket/prefix")
    assert "s3://BUCKET" in (caught.value.hint or "")
    assert "--s3-endpoint-url https://storage.googleapis.com" in (caught.value.hint or "")
