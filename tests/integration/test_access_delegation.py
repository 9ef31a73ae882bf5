"""Clients without a key of the bucket: temporary keys, signed requests, and what both refuse.

The S3 server checks signatures and the session policies of temporary keys.
"""

from __future__ import annotations

import gc
import re
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import boto3
import orjson
import pyarrow as pa
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import SignError

from headgate.errors import Invalid
from headgate.model.access import Role
from headgate.settings import load_settings
from headgate.store.embedded import Store
from tests.support.api import Api
from tests.support.attempts import JobOnMaster, dispatch_job
from tests.support.iceberg import TABLES, Front, RestClient, create, creation, refusal, send
from tests.support.manifests import empty_manifest_list
from tests.support.s3 import SIGNING, VENDED, S3Server, delegating_settings, running_s3
from tests.support.signed_io import signed_client

_ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64())})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running_s3(tmp_path_factory.mktemp("s3"), "enforce") as running:
        yield running


@pytest.fixture
def api(
    made_catalog_url: str,
    tmp_path: Path,
    front: Front,
    server: S3Server,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Api]:
    """A server of a store in a bucket, which gives access in both ways."""
    for name in server.options:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with Store(delegating_settings(made_catalog_url, tmp_path, server)) as store:
        served = Api(store, front)
        yield served
        served.close()
    while Client.opened:
        Client.opened.pop().http.close()
    with warnings.catch_warnings():
        # botocore and PyIceberg leave connections open until their clients are collected.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


class Client:
    """A client of a context, with the token of an actor or of a job's attempt."""

    opened: ClassVar[list[RestClient]] = []

    def __init__(self, api: Api, context: str = "master", token: str | None = None) -> None:
        self.url = f"{api.url}/iceberg"
        self.token = token or api.token("ana", Role.ADMIN)
        self.rest = RestClient(self.url, context, token=self.token)
        self.opened.append(self.rest)

    def load(self, mode: str, name: str = "t") -> Any:
        """Return a table with the access that the client asks for."""
        headers = {"X-Iceberg-Access-Delegation": mode}
        reply = self.rest.call("GET", f"{TABLES}/{name}", headers=headers)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def signed(self, loaded: Any) -> Any:
        """Return a client of S3 whose requests the endpoint signs."""
        return signed_client({**loaded["config"], "uri": self.url, "token": self.token})

    def sign(self, loaded: Any, method: str, uri: str, **headers: list[str]) -> Any:
        sent = {"method": method, "uri": uri, "region": "us-east-1", "headers": headers}
        return self.rest.http.post(f"/{loaded['config']['s3.signer.endpoint']}", json=sent)


@pytest.fixture
def ana(api: Api) -> Client:
    """An admin with the tables `db.t` and `db.u` on master."""
    made = Client(api)
    made.rest.call("POST", "namespaces", {"namespace": ["db"]}).raise_for_status()
    for name in ("t", "u"):
        create(made.rest, name)
    return made


def _place(loaded: Any) -> dict[str, str]:
    """Return bucket and key of a new file where a client is told to write."""
    parts = urlsplit(f"{loaded['metadata']['properties']['write.data.path']}/new.parquet")
    return {"Bucket": parts.netloc, "Key": parts.path.removeprefix("/")}


def _place_of(address: str) -> dict[str, str]:
    parts = urlsplit(address)
    return {"Bucket": parts.netloc, "Key": parts.path.removeprefix("/")}


def _vended(config: Any) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=config["s3.endpoint"],
        region_name=config["client.region"],
        aws_access_key_id=config["s3.access-key-id"],
        aws_secret_access_key=config["s3.secret-access-key"],
        aws_session_token=config["s3.session-token"],
        config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}),
    )


def _is_denied(call: Any, **arguments: Any) -> bool:
    try:
        call(**arguments)
    except (ClientError, SignError) as error:
        return "AccessDenied" in str(error) or "(403)" in str(error) or "request 403" in str(error)
    return False


def _catalog(client: Client, mode: str, **more: str) -> RestCatalog:
    return RestCatalog(
        "headgate",
        uri=client.url,
        warehouse="master",
        token=client.token,
        **{"header.X-Iceberg-Access-Delegation": mode, **more},
    )


# Engines without a key


def test_vended_credentials_let_pyiceberg_create_write_and_read(ana: Client) -> None:
    catalog = _catalog(ana, VENDED)
    made = catalog.create_table("db.mine", _ROWS.schema)
    made.append(_ROWS)
    made.append(_ROWS)
    assert catalog.load_table("db.mine").scan().to_arrow().num_rows == 6
    # Another client has a directory of its own, and reads this one.
    other = _catalog(ana, VENDED)
    other.load_table("db.mine").append(_ROWS)
    files = other.load_table("db.mine").inspect.files()["file_path"].to_pylist()
    assert len({path.rpartition("/by-")[2].partition("/")[0] for path in files}) == 2
    stored = ana.rest.call("GET", f"{TABLES}/mine").json()["metadata"]["properties"]
    assert "write.data.path" not in stored


def test_signed_requests_let_pyiceberg_create_write_and_read(ana: Client) -> None:
    io = {"py-io-impl": "tests.support.signed_io.SignedIO"}
    catalog = _catalog(ana, SIGNING, **io)
    catalog.create_table("db.mine", _ROWS.schema).append(_ROWS)
    with catalog.load_table("db.mine").transaction() as change:
        change.append(_ROWS)
    assert catalog.load_table("db.mine").scan().to_arrow().num_rows == 6


def test_table_that_is_staged_is_written_before_it_exists(ana: Client) -> None:
    for mode in (VENDED, SIGNING):
        body = {"name": mode[:4], "schema": {"type": "struct", "fields": []}, "stage-create": True}
        header = {"X-Iceberg-Access-Delegation": mode}
        staged = ana.rest.call("POST", TABLES, body, headers=header).json()
        place = _place(staged)
        if mode == VENDED:
            refresh = staged["config"]["client.refresh-credentials-endpoint"]
            renewed = ana.rest.http.get(f"/{refresh}").json()["storage-credentials"][0]
            _vended(renewed["config"]).put_object(**place, Body=b"x")
            _vended(staged["config"]).put_object(**place, Body=b"x")
            moved = {**place, "Key": place["Key"].replace("/by-", "/of-")}
            assert _is_denied(_vended(renewed["config"]).put_object, **moved, Body=b"x")
        else:
            ana.signed(staged).put_object(**place, Body=b"x")
        made = ana.rest.call(
            "POST",
            f"{TABLES}/{mode[:4]}",
            {"requirements": [{"type": "assert-create"}], "updates": creation(staged)},
            headers=header,
        )
        assert made.json()["metadata"]["properties"]["write.data.path"] in str(staged)
        stored = ana.rest.call("GET", f"{TABLES}/{mode[:4]}").json()["metadata"]["properties"]
        assert "write.data.path" not in stored


def test_multipart_ranges_and_aborts_are_signed(ana: Client) -> None:
    loaded = ana.load(SIGNING)
    s3, place = ana.signed(loaded), _place(loaded)
    upload = s3.create_multipart_upload(**place)["UploadId"]
    parts = [
        {
            "PartNumber": n,
            "ETag": s3.upload_part(**place, UploadId=upload, PartNumber=n, Body=body)["ETag"],
        }
        for n, body in ((1, b"a" * 5 * 1024**2), (2, b"b"))
    ]
    s3.complete_multipart_upload(**place, UploadId=upload, MultipartUpload={"Parts": parts})
    assert s3.head_object(**place)["ContentLength"] == 5 * 1024**2 + 1
    assert s3.get_object(**place, Range="bytes=5242879-")["Body"].read() == b"ab"
    other = s3.create_multipart_upload(**place)["UploadId"]
    s3.abort_multipart_upload(**place, UploadId=other)
    assert _is_denied(s3.delete_object, **place)
    assert _is_denied(s3.delete_objects, Bucket=place["Bucket"], Delete={"Objects": [{"Key": "a"}]})
    assert s3.head_object(**place)["ContentLength"] == 5 * 1024**2 + 1


# The place of a client


@pytest.mark.parametrize("mode", [VENDED, SIGNING])
def test_a_client_writes_in_its_own_directory_and_deletes_nothing(ana: Client, mode: str) -> None:
    loaded, other = ana.load(mode), ana.load(mode, "u")
    s3 = _vended(loaded["config"]) if mode == VENDED else ana.signed(loaded)
    place = _place(loaded)
    s3.put_object(**place, Body=b"mine")
    assert s3.get_object(**place)["Body"].read() == b"mine"
    written = _place_of(loaded["metadata-location"])
    assert s3.get_object(**written)["Body"].read()
    assert _is_denied(s3.put_object, **written, Body=b"not metadata")
    assert _is_denied(s3.delete_object, **place)
    for key in (
        _place(other)["Key"],
        place["Key"].replace("/by-", "/by-0"),
        f"{place['Key'].partition('/by-')[0]}/data/x.parquet",
    ):
        assert _is_denied(s3.put_object, Bucket=place["Bucket"], Key=key, Body=b"x"), key
    own, _, _ = place["Key"].rpartition("/data/")
    listed = s3.list_objects_v2(Bucket=place["Bucket"], Prefix=own)
    assert [one["Key"] for one in listed["Contents"]] == [place["Key"]]
    theirs = _place_of(other["metadata-location"])
    assert _is_denied(s3.get_object, **theirs)
    for prefix in ("", "ware house/tables/", theirs["Key"].rpartition("/")[0]):
        assert _is_denied(s3.list_objects_v2, Bucket=place["Bucket"], Prefix=prefix), prefix
    source = f"{theirs['Bucket']}/{theirs['Key']}"
    assert _is_denied(s3.copy_object, **place, CopySource=source)


@pytest.mark.parametrize("mode", [VENDED, SIGNING])
def test_e04_a_superseded_attempt_loses_its_access_to_storage(
    api: Api, ana: Client, mode: str
) -> None:
    def client(job: JobOnMaster) -> Client:
        return Client(api, job.context, job.token)

    def access(of: Client, loaded: Any) -> Any:
        return _vended(loaded["config"]) if mode == VENDED else of.signed(loaded)

    send(ana.rest, {"action": "set-properties", "updates": {"a": "b"}})
    first = client(job := dispatch_job(api.store, "build/0", inputs=("db.t",), outputs=("db.u",)))
    create(first.rest, "u")
    mine = first.load(mode, "u")
    access(first, mine).put_object(**_place(mine), Body=b"first")
    # Of an input it only reads.
    read = first.load(mode, "t")
    assert "write.data.path" not in read["metadata"]["properties"]
    assert access(first, read).get_object(**_place_of(read["metadata-location"]))["Body"].read()
    moved = {**_place(mine), "Key": _place_of(read["metadata-location"])["Key"]}
    assert _is_denied(access(first, read).put_object, **moved, Body=b"x")

    second = client(dispatch_job(api.store, "build/0", inputs=("db.t",), outputs=("db.u",)))
    superseded = (403, "attempt_superseded")
    if mode == VENDED:
        refresh = f"/{mine['config']['client.refresh-credentials-endpoint']}"
        assert refusal(first.rest.http.get(refresh)) == superseded
    else:
        uri = f"{mine['config']['s3.endpoint']}/{_place(mine)['Bucket']}/x"
        assert refusal(first.sign(mine, "PUT", uri)) == superseded
        assert _is_denied(first.signed(mine).put_object, **_place(mine), Body=b"late")
    assert refusal(first.rest.call("GET", f"{TABLES}/u")) == superseded

    create(second.rest, "u")
    fresh = second.load(mode, "u")
    access(second, fresh).put_object(**_place(fresh), Body=b"second")
    assert _is_denied(access(second, fresh).put_object, **_place(mine), Body=b"second")
    assert _place(fresh)["Key"] != _place(mine)["Key"]
    assert job.ref.key == "build/0"


# Rights of tokens


@pytest.mark.parametrize("mode", [VENDED, SIGNING])
def test_a_reader_gets_access_for_reading(api: Api, ana: Client, mode: str) -> None:
    rea = Client(api, token=api.token("rea", Role.READER))
    loaded, mine = rea.load(mode), ana.load(mode)
    assert "write.data.path" not in loaded["metadata"]["properties"]
    s3 = _vended(loaded["config"]) if mode == VENDED else rea.signed(loaded)
    assert s3.get_object(**_place_of(loaded["metadata-location"]))["Body"].read()
    assert _is_denied(s3.put_object, **_place(mine), Body=b"x")


def test_a_writer_of_other_branches_and_a_protected_branch_get_none_for_writing(
    api: Api, ana: Client
) -> None:
    walt = api.token("walt", Role.WRITER, "walt/*")
    assert "write.data.path" not in str(Client(api, token=walt).load(VENDED))
    assert "write.data.path" in str(Client(api, "walt/x>master", walt).load(VENDED))
    wendy = Client(api, token=api.token("wendy", Role.WRITER))
    assert "write.data.path" in str(wendy.load(VENDED))
    api.store.protect("master")
    assert "write.data.path" not in str(wendy.load(VENDED))
    assert "write.data.path" in str(ana.load(VENDED))


def test_a_limited_reader_gets_signatures_for_the_files_of_its_branch_only(
    api: Api, ana: Client
) -> None:
    io = {"py-io-impl": "tests.support.signed_io.SignedIO"}
    table = _catalog(ana, SIGNING, **io).create_table("db.mine", _ROWS.schema)
    table.append(_ROWS)
    shown = {one["manifest-list"] for one in ana.load(SIGNING, "mine")["metadata"]["snapshots"]}
    shown |= set(table.inspect.files()["file_path"].to_pylist())
    assert len(shown) == 2
    made = api.store.create_token(actor="lim", role=Role.READER, reads=("master",))
    lim = Client(api, token=str(made["token"]))
    asked = lim.load(VENDED)
    assert "storage-credentials" not in asked and not asked["config"]
    loaded = lim.load(f"{VENDED},{SIGNING}", "mine")
    s3 = lim.signed(loaded)
    for address in (*shown, loaded["metadata-location"]):
        assert s3.get_object(**_place_of(address))["Body"].read()
    branch = Client(api, "feature>master", ana.token)
    commit = {"action": "set-properties", "updates": {"a": "b"}}
    theirs = send(branch.rest, commit, name="mine").json()["metadata-location"]
    assert ana.signed(ana.load(SIGNING, "mine")).get_object(**_place_of(theirs))["Body"].read()
    assert _is_denied(s3.get_object, **_place_of(theirs))
    below = _place_of(loaded["metadata-location"])
    assert _is_denied(s3.list_objects_v2, Bucket=below["Bucket"], Prefix=below["Key"][:30])
    refresh = f"/v1/{lim.rest.prefix}/{TABLES}/t/credentials"
    assert refusal(lim.rest.http.get(refresh)) == (403, "signing_refused")


def test_a_token_that_expires_ends_its_keys_with_it(api: Api, ana: Client) -> None:
    made = api.store.create_token(actor="eve", role=Role.WRITER, lifetime_seconds=3)
    eve = Client(api, token=str(made["token"]))
    keys, signed = eve.load(VENDED), eve.load(SIGNING)
    ends = int(keys["config"]["s3.session-token-expires-at-ms"]) / 1000
    assert ends < time.time() + 4
    _vended(keys["config"]).put_object(**_place(keys), Body=b"x")
    time.sleep(max(0, ends - time.time()) + 0.5)
    assert _is_denied(_vended(keys["config"]).put_object, **_place(keys), Body=b"x")
    uri = f"{keys['config']['s3.endpoint']}/bucket/x"
    assert eve.sign(signed, "GET", uri).status_code == 401
    refresh = f"/{keys['config']['client.refresh-credentials-endpoint']}"
    assert eve.rest.http.get(refresh).status_code == 401


# Tables in other places


def _register(api: Api, ana: Client, server: S3Server, *lists: str) -> Any:
    """Register `db.r` with a snapshot for each manifest list, and return a client of its bucket."""
    bucket = urlsplit(api.store.settings.warehouse).netloc
    metadata = ana.load("none")["metadata"]
    snapshots = [
        {
            "snapshot-id": number,
            "sequence-number": number,
            "timestamp-ms": metadata["last-updated-ms"] + number,
            "summary": {"operation": "append"},
            "manifest-list": place.format(bucket=bucket),
        }
        for number, place in enumerate(lists, start=1)
    ]
    document = {**metadata, "snapshots": snapshots, "last-sequence-number": len(lists)}
    owner = _owner(server)
    owner.put_object(Bucket=bucket, Key="metadata/v1.metadata.json", Body=orjson.dumps(document))
    location = f"s3://{bucket}/metadata/v1.metadata.json"
    api.store.dataset("db.r").register(location, branch="master")
    return owner


def _owner(server: S3Server) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        region_name="us-east-1",
        aws_access_key_id="tests",
        aws_secret_access_key="not-a-secret",
        config=Config(s3={"addressing_style": "path"}),
    )


@pytest.mark.parametrize("mode", [VENDED, SIGNING])
def test_registered_table_gives_access_to_no_directory_around_its_own(
    api: Api, ana: Client, server: S3Server, mode: str
) -> None:
    lists = ["s3://{bucket}/metadata/a.avro", "s3://{bucket}/b.avro"]
    if mode == VENDED:
        lists.append("file:///srv/t/metadata/c.avro")
    owner = _register(api, ana, server, *lists)
    bucket = urlsplit(api.store.settings.warehouse).netloc
    for key in ("metadata/a.avro", "b.avro", "private", "metadata2/x", "data/x"):
        owner.put_object(Bucket=bucket, Key=key, Body=empty_manifest_list())
    loaded = ana.load(mode, "r")
    s3 = _vended(loaded["config"]) if mode == VENDED else ana.signed(loaded)
    assert s3.get_object(Bucket=bucket, Key="metadata/a.avro")["Body"].read()
    for key in ("private", "metadata2/x", "data/x"):
        assert _is_denied(s3.get_object, Bucket=bucket, Key=key), key
    assert _is_denied(s3.put_object, Bucket=bucket, Key="metadata/a.avro", Body=b"y")


def test_table_in_too_many_places_for_a_policy_gives_signatures_only(
    api: Api, ana: Client, server: S3Server
) -> None:
    _register(api, ana, server, *(f"s3://{{bucket}}/{n:060}/metadata/a" for n in range(20)))
    assert ana.load(VENDED, "r")["config"] == {}
    loaded = ana.load(f"{VENDED},{SIGNING}", "r")
    bucket = urlsplit(api.store.settings.warehouse).netloc
    uri = f"{server.endpoint}/{bucket}/{7:060}/data/a.parquet"
    assert ana.sign(loaded, "GET", uri).status_code == 200
    refresh = f"/v1/{ana.rest.prefix}/{TABLES}/r/credentials"
    assert refusal(ana.rest.http.get(refresh)) == (403, "signing_refused")


# Settings


@pytest.mark.parametrize(
    ("warehouse", "more", "advice"),
    [
        ("lake", "", "Set store.warehouse to s3://bucket/prefix, or remove"),
        ("s3://lake/wh", "", "store.sts_role_arn"),
        ("s3://lake/wh", 'sts_role_arn = "headgate"', "arn:aws:iam::<account>:role/<name>"),
    ],
)
def test_settings_that_cannot_give_access_name_what_to_set(
    tmp_path: Path, warehouse: str, more: str, advice: str
) -> None:
    text = f'[store]\nwarehouse = "{warehouse}"\naccess_delegation = ["{VENDED}"]\n{more}\n'
    (tmp_path / "headgate.toml").write_text(text)
    with pytest.raises(Invalid, match=re.escape(advice)):
        load_settings(tmp_path, environ={})


# Replies


def test_replies_with_access_are_neither_kept_nor_given_to_others(api: Api, ana: Client) -> None:
    plain = ana.rest.call("GET", f"{TABLES}/t")
    for mode in (VENDED, SIGNING):
        header = {"X-Iceberg-Access-Delegation": mode, "if-none-match": plain.headers["etag"]}
        given = ana.rest.call("GET", f"{TABLES}/t", headers=header)
        assert given.status_code == 200 and "etag" not in given.headers
        assert given.headers["cache-control"] == "no-store"
    again = ana.rest.call("GET", f"{TABLES}/t")
    assert (again.content, again.json()["config"]) == (plain.content, {})
    ben = Client(api, token=api.token("ben", Role.WRITER))
    keys = {who.load(VENDED)["config"]["s3.access-key-id"] for who in (ana, ana, ben)}
    assert len(keys) == 2
    assert ana.load(VENDED)["config"]["s3.access-key-id"] in keys


def test_ways_that_the_store_does_not_offer_are_not_advertised(
    api: Api, ana: Client, front: Front
) -> None:
    advertised = "\n".join(ana.rest.config["endpoints"])
    assert "/credentials" in advertised and "/sign" in advertised
    settings = replace(api.store.settings, access_delegation=())
    with Store(settings) as store:
        plain = Api(store, front)
        client = Client(plain, token=ana.token)
        assert "/sign" not in "\n".join(client.rest.config["endpoints"])
        assert client.load(VENDED)["config"] == {}
        for method, name in (("GET", "credentials"), ("POST", "sign")):
            reply = client.rest.call(method, f"{TABLES}/t/{name}", {})
            assert reply.status_code == 404 and "access_delegation" in reply.text
        plain.close()
    front.app = api.app
