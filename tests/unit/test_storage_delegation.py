"""What a session policy allows, and which requests to S3 are signed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from headgate.errors import SigningRefused
from headgate.storage.delegation import Rights, Site, policy_document, read_request
from tests.support.session_policies import allows

_OWN = "s3://lake/wh/tables/d1/x/by-0123456789abcdef/"
_RIGHTS = Rights(reads=("s3://lake/wh/tables/d1/",), writes=(_OWN,))
_KEY = "wh/tables/d1/x/by-0123456789abcdef/data/a.parquet"
_KEYS = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}
_MINIO = Site.open({**_KEYS, "AWS_ENDPOINT_URL": "http://minio:9000"})
_AMAZON = Site.open({**_KEYS, "AWS_REGION": "eu-west-1"})
_AT = "http://minio:9000/lake"


def _sign(
    method: str, uri: str, headers: Mapping[str, str] | None = None, *, site: Site = _MINIO
) -> Any:
    """Return the signed reply to a client with the rights above, or raise."""
    named = {name: [text] for name, text in (headers or {}).items()}
    request = read_request(site, method, uri, named)
    request.check(_RIGHTS)
    return request.signed(site, datetime(2026, 11, 1, tzinfo=UTC))


# Policies


def _allowed(rights: Rights, action: str, resource: str, **context: str) -> bool:
    return allows(json.loads(policy_document(rights)), f"s3:{action}", resource, **context)


@pytest.mark.parametrize(
    ("action", "key", "allowed"),
    [
        ("GetObject", "wh/tables/d1/x/data/a.parquet", True),
        ("GetObject", _KEY, True),
        ("GetObject", "wh/tables/d10/x/data/a.parquet", False),
        ("GetObject", "wh/tables/d1", False),
        ("GetObject", "wh/objects/d1/", False),
        ("PutObject", _KEY, True),
        ("PutObject", "wh/tables/d1/x/data/a.parquet", False),
        ("PutObject", "wh/tables/d1/x/by-0123456789abcdef0/data/a.parquet", False),
        ("AbortMultipartUpload", _KEY, True),
        ("DeleteObject", _KEY, False),
        ("DeleteObjectVersion", _KEY, False),
        ("PutObjectAcl", _KEY, False),
        ("GetObjectAcl", _KEY, False),
    ],
)
def test_policy_allows_exactly_the_prefixes_of_the_rights(
    action: str, key: str, allowed: bool
) -> None:
    assert _allowed(_RIGHTS, action, f"lake/{key}") is allowed
    assert not _allowed(_RIGHTS, action, f"lake2/{key}")


@pytest.mark.parametrize(
    ("prefix", "allowed"),
    [("wh/tables/d1/", True), ("wh/tables/d1/x", True), ("wh/tables/d1", False), ("", False)],
)
def test_policy_allows_lists_below_a_place_only(prefix: str, allowed: bool) -> None:
    assert _allowed(_RIGHTS, "ListBucket", "lake", s3_prefix=prefix) is allowed
    # Of a request without a prefix.
    assert not _allowed(_RIGHTS, "ListBucket", "lake")


def test_policy_takes_patterns_and_variables_in_names_literally() -> None:
    rights = Rights(writes=("s3://lake/a*b/${aws:username}?/",))
    assert _allowed(rights, "PutObject", "lake/a*b/${aws:username}?/x")
    for key in ("aXb/${aws:username}?/x", "a*b/ana?/x", "a*b/${aws:username}!/x"):
        assert not _allowed(rights, "PutObject", f"lake/{key}"), key


def test_policy_ends_when_the_token_does() -> None:
    until = datetime(2026, 11, 1, 12, tzinfo=UTC)
    document = json.loads(policy_document(_RIGHTS, until=until))
    for moment, allowed in (("2026-11-01T11:59:59Z", True), ("2026-11-01T12:00:00Z", False)):
        assert allows(document, "s3:PutObject", f"lake/{_KEY}", aws_CurrentTime=moment) is allowed


def test_policy_has_each_place_once_and_only_characters_that_services_take() -> None:
    text = policy_document(Rights(reads=("s3://lake/数据/",), writes=("s3://lake/数据/by-1/",)))
    assert text.isascii()
    assert _allowed(Rights(reads=("s3://lake/数据/",)), "GetObject", "lake/数据/x")
    (reads,) = [one for one in json.loads(text)["Statement"] if one["Action"] == ["s3:GetObject"]]
    assert reads["Resource"] == ["arn:aws:s3:::lake/数据/*"]


# Requests that are signed


@pytest.mark.parametrize(
    ("method", "uri"),
    [
        ("GET", f"{_AT}/wh/tables/d1/x/data/a.parquet"),
        ("GET", f"{_AT}/{_KEY}?x-id=GetObject"),
        ("HEAD", f"{_AT}/{_KEY}?partNumber=1"),
        ("PUT", f"{_AT}/{_KEY}?x-id=PutObject"),
        ("PUT", f"{_AT}/{_KEY}?partNumber=1&uploadId=u"),
        ("POST", f"{_AT}/{_KEY}?uploads"),
        ("POST", f"{_AT}/{_KEY}?uploadId=u"),
        ("DELETE", f"{_AT}/{_KEY}?uploadId=u"),
        ("GET", f"{_AT}?list-type=2&prefix=wh%2Ftables%2Fd1%2F&delimiter=%2F"),
    ],
)
def test_reads_writes_and_lists_are_signed(method: str, uri: str) -> None:
    signed = _sign(method, uri)
    assert signed["uri"].partition("?")[0] == uri.partition("?")[0]
    assert signed["headers"]["authorization"][0].startswith("AWS4-HMAC-SHA256 Credential=id/")


@pytest.mark.parametrize(
    ("method", "query"),
    [
        ("DELETE", ""),
        # Ceph takes an empty upload for none, and would delete the object.
        ("DELETE", "uploadId="),
        ("DELETE", "uploadId"),
        ("DELETE", "uploadId=u&versionId=v"),
        ("PUT", "partNumber=&uploadId="),
        ("PUT", "partNumber=1"),
        ("PUT", "acl"),
        ("GET", "acl"),
        ("PUT", "tagging"),
        ("PUT", "retention"),
        ("PUT", "legal-hold"),
        ("PUT", "x-amz-acl=public-read"),
        ("PUT", "X-Amz-Signature=0"),
        ("POST", ""),
        ("POST", "delete"),
        ("POST", "restore"),
        ("POST", "select&select-type=2"),
        ("POST", "uploads&uploads"),
        ("POST", "Uploads"),
        ("GET", "versionId=v"),
        ("GET", "torrent"),
        ("GET", "response-content-type=text%2Fhtml"),
        ("PATCH", ""),
        ("put", ""),
        ("OPTIONS", ""),
    ],
)
def test_other_operations_on_own_objects_are_not_signed(method: str, query: str) -> None:
    with pytest.raises(SigningRefused):
        _sign(method, f"{_AT}/{_KEY}?{query}")


@pytest.mark.parametrize(
    ("method", "query"),
    [
        ("GET", "prefix=wh/tables/d1"),
        ("GET", "prefix="),
        ("GET", ""),
        ("GET", "prefix=wh/tables/d1/&prefix="),
        ("GET", "prefix=wh/tables/d1/&versions"),
        ("GET", "uploads&prefix=wh/tables/d1/"),
        ("GET", "policy"),
        ("POST", "delete"),
        ("PUT", ""),
        ("DELETE", ""),
        ("HEAD", ""),
    ],
)
def test_operations_on_the_bucket_are_not_signed(method: str, query: str) -> None:
    for slash in ("", "/"):
        with pytest.raises(SigningRefused):
            _sign(method, f"{_AT}{slash}?{query}")


@pytest.mark.parametrize(
    "uri",
    [
        # Of another table whose id begins alike, another client, and around the own place.
        f"{_AT}/wh/tables/d10/x/by-0123456789abcdef/data/a.parquet",
        f"{_AT}/wh/tables/d1/x/by-0123456789abcdeff/a.parquet",
        f"{_AT}/wh/tables/d1/x/by-0123456789abcdef",
        f"{_AT}/{_KEY}/../../../../b",
        f"{_AT}/{_KEY}/%2e%2e/b",
        f"{_AT}/{_KEY}/%2E./b",
        f"{_AT}/{_KEY}/..%2Fb",
        f"{_AT}/{_KEY}/..%5Cb",
        f"{_AT}/{_KEY}/./b",
        f"{_AT}/{_KEY}//b",
        f"{_AT}//{_KEY}",
        f"{_AT}/{_KEY}/",
        f"{_AT}/{_KEY}%00",
        f"{_AT}/{_KEY}%0d%0ax-amz-acl:public-read",
        f"{_AT}/{_KEY}%",
        f"{_AT}/{_KEY}%zz",
        f"{_AT}/{_KEY}%ff",
        f"{_AT}/{_KEY}#b",
        f"http://minio:9000/lake2/{_KEY}",
        f"http://minio:9000//lake/{_KEY}",
        f"http://minio:9000/{_KEY}",
        "http://minio:9000/",
    ],
)
def test_other_places_are_not_signed(uri: str) -> None:
    with pytest.raises(SigningRefused):
        _sign("PUT", uri)


@pytest.mark.parametrize(
    ("site", "at"),
    [
        (_MINIO, "https://minio:9000/lake"),
        (_MINIO, "http://minio/lake"),
        (_MINIO, "http://minio:9001/lake"),
        (_MINIO, "http://minio:x/lake"),
        (_MINIO, "http://lake.minio:9000"),
        (_MINIO, "http://user@minio:9000/lake"),
        (_MINIO, "http://minio:9000@evil.example/lake"),
        (_MINIO, "http://minio.evil.example:9000/lake"),
        (_MINIO, "//minio:9000/lake"),
        (_AMAZON, "https://evil.example/lake"),
        (_AMAZON, "https://s3.us-east-1.amazonaws.com/lake"),
        (_AMAZON, "https://lake.evil-s3.eu-west-1.amazonaws.com"),
        (_AMAZON, "https://lake2.s3.eu-west-1.amazonaws.com"),
        (_AMAZON, "https://lake.s3.eu-west-1.amazonaws.com.evil.example"),
        (_AMAZON, "https://lake.s3.eu-west-1.amazonaws.com."),
        (_AMAZON, "http://lake.s3.eu-west-1.amazonaws.com"),
        # The bucket is before the host: the path is the key.
        (_AMAZON, "https://other.s3.eu-west-1.amazonaws.com/lake"),
    ],
)
def test_other_hosts_and_buckets_are_not_signed(site: Site, at: str) -> None:
    with pytest.raises(SigningRefused):
        _sign("PUT", f"{at}/{_KEY}", site=site)


def test_both_styles_of_addresses_of_amazon_are_signed() -> None:
    for host in ("lake.s3.eu-west-1.amazonaws.com", "s3.eu-west-1.amazonaws.com/lake"):
        uri = f"https://{host}/{_KEY}"
        assert _sign("PUT", uri, site=_AMAZON)["uri"] == uri
        assert _sign("PUT", uri.replace("https://", "HTTPS://"), site=_AMAZON)["uri"] == uri


@pytest.mark.parametrize(
    "name",
    [
        "x-amz-copy-source",
        "X-Amz-Copy-Source",
        "x-amz-copy-source-range",
        "x-amz-acl",
        "x-amz-grant-full-control",
        "x-amz-tagging",
        "x-amz-object-lock-mode",
        "x-amz-website-redirect-location",
        "x-amz-security-token",
        "x-amz-date",
        "x-amz-acl ",
        "x-amz-meta-a:b\nx-amz-acl",
        "authorization",
        "Authorization",
    ],
)
def test_headers_that_change_the_operation_are_not_signed(name: str) -> None:
    with pytest.raises(SigningRefused):
        _sign("PUT", f"{_AT}/{_KEY}", {name: "public-read"})


@pytest.mark.parametrize("text", ["a\r\nx-amz-acl:public-read", "a\n", "a\tb", "a\0", "a\u2028b"])
def test_headers_with_control_characters_are_not_signed(text: str) -> None:
    for name in ("x-amz-meta-a", "range", "user-agent"):
        with pytest.raises(SigningRefused):
            _sign("PUT", f"{_AT}/{_KEY}", {name: text})


def test_headers_of_clients_that_change_nothing_are_signed() -> None:
    # Of Amazon's client for Java, at each read.
    signed = _sign("GET", f"{_AT}/{_KEY}", {"x-amz-te": "append-md5", "amz-sdk-request": "a"})
    assert "x-amz-te" in signed["headers"]["authorization"][0]


def test_a_header_that_is_there_twice_and_that_of_another_host_are_not_signed() -> None:
    with pytest.raises(SigningRefused):
        _sign("PUT", f"{_AT}/{_KEY}", {"range": "bytes=0-", "Range": "bytes=1-"})
    with pytest.raises(SigningRefused):
        _sign("PUT", f"{_AT}/{_KEY}", {"host": "evil.example"})
    with pytest.raises(SigningRefused):
        _sign(
            "PUT", f"{_AT}/{_KEY}", {"x-amz-content-sha256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"}
        )


def test_signature_covers_what_changes_the_operation_and_the_address_is_as_signed() -> None:
    signed = _sign(
        "PUT", f"http://MINIO:9000/lake/{_KEY}%20b?x-id=P%2fut", {"If-None-Match": "*", "a": "b"}
    )
    assert signed["uri"] == f"{_AT}/{_KEY}%20b?x-id=P%2Fut"
    (authorization,) = signed["headers"]["authorization"]
    names = authorization.partition("SignedHeaders=")[2].partition(",")[0]
    assert names == "host;if-none-match;x-amz-content-sha256;x-amz-date"
    # The headers of the client are not repeated.
    assert set(signed["headers"]) == {"authorization", "x-amz-content-sha256", "x-amz-date"}
