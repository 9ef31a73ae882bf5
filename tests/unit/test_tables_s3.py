"""S3 settings for clients: endpoint and region, never a secret."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from headgate.errors import Invalid, StorageUnavailable
from headgate.settings import Settings, SparkSettings, load_settings
from headgate.spark.session import executor_credentials
from headgate.storage.address import client_properties, open_store

SECRETS = {
    "AWS_ACCESS_KEY_ID": "id",
    "AWS_SECRET_ACCESS_KEY": "very-secret",
    "AWS_SESSION_TOKEN": "also-secret",
}


def test_environment_without_s3_has_no_properties() -> None:
    assert client_properties({"HOME": "/root", **SECRETS}) == {}


@pytest.mark.parametrize(
    ("environ", "properties"),
    [
        ({"AWS_REGION": "eu-1"}, {"client.region": "eu-1"}),
        (
            {"AWS_ENDPOINT_URL": "http://a", "AWS_ENDPOINT_URL_S3": "http://b"},
            {
                "s3.endpoint": "http://b",
                "s3.path-style-access": "true",
                "client.region": "us-east-1",
            },
        ),
        (
            {
                "AWS_ENDPOINT_URL": "http://a",
                "AWS_DEFAULT_REGION": "eu-1",
                "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true",
            },
            {"s3.endpoint": "http://a", "s3.path-style-access": "false", "client.region": "eu-1"},
        ),
    ],
)
def test_endpoint_and_region_are_properties_and_no_secret(
    environ: dict[str, str], properties: dict[str, str]
) -> None:
    assert client_properties({**environ, **SECRETS}) == properties


def test_anonymous_access_is_a_property() -> None:
    found = client_properties({"AWS_SKIP_SIGNATURE": "true"})
    assert found["client.credentials-provider"].endswith("AnonymousCredentialsProvider")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s3://id:very-secret@bucket/x", r"AWS_\* variables"),
        ("s3://very-secret@bucket", r"AWS_\* variables"),
        ("https://u:very-secret@h/x", r"AWS_\* variables"),
        ("s3://bucket/x?secret=very-secret", "not supported"),
    ],
)
def test_address_with_credentials_is_refused_without_repeating_them(url: str, words: str) -> None:
    with pytest.raises(Invalid, match=words) as refused:
        open_store(url)
    assert "very-secret" not in str(refused.value) + str(refused.value.to_json())


@pytest.mark.parametrize(
    ("master", "warehouse", "names"),
    [
        ("local[*]", "s3://b/w", []),
        ("spark://h:7077", "/w", []),
        ("spark://h:7077", "s3://b/w", [f"spark.executorEnv.{name}" for name in SECRETS]),
    ],
)
def test_executors_of_a_cluster_get_credentials_as_their_environment(
    tmp_path: Path, master: str, warehouse: str, names: list[str]
) -> None:
    settings = Settings(
        root=tmp_path,
        catalog="sqlite:///x",
        warehouse=warehouse,
        spark=SparkSettings(master=master),
        environ={"HOME": "/root", **SECRETS},
    )
    assert list(executor_credentials(settings)) == names
    assert "secret" not in repr(settings)


@pytest.mark.parametrize(
    "name",
    [
        *("spark.hadoop.fs.s3a.secret.key", "spark.hadoop.fs.s3a.access.key"),
        *("spark.sql.catalog.x.s3.secret-access-key", "spark.ssl.keyPassword"),
    ],
)
def test_secret_in_the_settings_file_is_refused_by_name(tmp_path: Path, name: str) -> None:
    file = tmp_path / "headgate.toml"
    file.write_text(f'[spark.conf]\n"{name}" = "very-secret"\n')
    with pytest.raises(Invalid, match="AWS_") as refused:
        load_settings(file, {})
    assert name in str(refused.value) and "very-secret" not in str(refused.value)


class Echo(BaseHTTPRequestHandler):
    """A server that rejects everything, and repeats the request in its reply."""

    def do_GET(self) -> None:
        self.send_response(403)
        self.end_headers()
        self.wfile.write(b"<Error><Code>No</Code><Message>very-secret is wrong</Message></Error>")

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def test_server_that_repeats_a_secret_is_not_quoted() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever).start()
        endpoint = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}"}
        store = open_store("s3://bucket/x", {**endpoint, **SECRETS})
        with pytest.raises(StorageUnavailable) as refused:
            store.get("key")
        server.shutdown()
    assert "***" in refused.value.message and "very-secret" not in refused.value.message
