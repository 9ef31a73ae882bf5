"""Many small files of a client: batched, resumed after a lost connection, always verified."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import headgate
from headgate.client.contents import RemoteObjects, remote_contents
from headgate.client.store import RemoteStore
from headgate.errors import FileChanged, ObjectCorrupted, ObjectNotFound, Unavailable
from headgate.files.objects import SMALL_BYTES, Digest, digest_of, encode_frame, key_of, read_frames
from headgate.model.access import Role
from headgate.store.datasets import BranchHandle
from tests.support.api import Api
from tests.support.proxy import Cut, Proxy, proxy_before

_FILES = {f"d{number % 3}/f{number}": b"%d" % number * 9000 for number in range(20, 60)}

_DOWN = (
    b"POST /api/v1/contents/get",
    b"GET /api/v1/contents/",
    b"GET /api/v1/files/raw.scans/large",
)
_LENGTH = re.compile("(?i)content-length: ([0-9]+)")


@dataclass(frozen=True, kw_only=True)
class Afar:
    """A client behind a network that records requests, and can be cut."""

    api: Api
    client: RemoteStore
    proxy: Proxy
    # Headers of all requests about contents.
    heads: list[str]

    @property
    def asked(self) -> list[str]:
        return [
            head.split(" HTTP", 1)[0].removeprefix("POST /api/v1/contents/") for head in self.heads
        ]

    @property
    def branch(self) -> BranchHandle:
        return self.client.dataset("raw.scans").branch("master")

    def put(self, source: Path) -> None:
        for path, data in _FILES.items():
            (source / path).parent.mkdir(parents=True, exist_ok=True)
            (source / path).write_bytes(data)
        self.branch.put(source)

    def get(self, target: Path) -> dict[str, bytes]:
        self.client.dataset("raw.scans").shown(branch="master").download(target)
        files = (path for path in target.rglob("*") if path.is_file())
        return {str(path.relative_to(target)): path.read_bytes() for path in files}


@pytest.fixture
def afar(small_api: Api) -> Iterator[Afar]:
    heads: list[str] = []

    def matters(data: bytes) -> bool:
        if b" /api/v1/contents/" in data[:30]:
            heads.append(data.partition(b"\r\n\r\n")[0].decode())
        return data.startswith(_DOWN)

    token = small_api.token("ana", Role.ADMIN)
    with (
        proxy_before(urlsplit(small_api.url).port or 0, matters) as proxy,
        headgate.open(f"http://127.0.0.1:{proxy.port}", token=token) as client,
    ):
        assert isinstance(client, RemoteStore)
        client.dataset("raw.scans").create(kind="files", branch="master")
        yield Afar(api=small_api, client=client, proxy=proxy, heads=heads)


def test_small_files_go_up_and_come_down_in_few_requests(afar: Afar, tmp_path: Path) -> None:
    afar.put(tmp_path / "up")
    assert afar.get(tmp_path / "down") == _FILES
    assert afar.asked == ["missing", "put", "get"]
    # Content that the server has is not sent again.
    afar.branch.put(tmp_path / "up", "again")
    assert afar.asked == ["missing", "put", "get", "missing"]


@pytest.mark.parametrize("cut", [Cut.BEFORE, Cut.AFTER, Cut.MIDWAY])
def test_download_cut_off_goes_on_with_what_is_missing(
    afar: Afar, tmp_path: Path, cut: Cut
) -> None:
    afar.put(tmp_path / "up")
    afar.proxy.cut = cut
    assert afar.get(tmp_path / "down") == _FILES
    assert afar.proxy.cut is Cut.NEVER
    first, second = [int(_LENGTH.findall(head)[0]) for head in afar.heads[-2:]]
    assert (second < first) is (cut is Cut.MIDWAY)


def test_large_content_cut_off_is_asked_for_again(afar: Afar, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(secrets.token_bytes(2 * 1024 * 1024))
    afar.branch.put(tmp_path / "large")
    afar.proxy.cut = Cut.MIDWAY
    got = afar.get(tmp_path / "down")
    assert afar.proxy.cut is Cut.NEVER
    assert got == {"large": (tmp_path / "large").read_bytes()}


def test_answer_cut_off_for_good_is_told_as_that(afar: Afar, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(secrets.token_bytes(2 * 1024 * 1024))
    afar.branch.put(tmp_path / "large")
    afar.proxy.cut = Cut.MIDWAY
    with pytest.raises(Unavailable, match="cut in the middle of a response"):
        list(afar.client.http.stream("/files/raw.scans/large", branch="master"))


def test_content_gone_or_damaged_is_told_by_its_own_error(afar: Afar, tmp_path: Path) -> None:
    afar.put(tmp_path / "up")
    objects = afar.api.store.objects
    key = key_of(digest_of(_FILES["d0/f21"]))
    objects.replace(key, b"other bytes")
    with pytest.raises(ObjectCorrupted):
        afar.get(tmp_path / "damaged")
    objects.delete([key])
    with pytest.raises(ObjectNotFound, match=key.rpartition("/")[2]):
        afar.get(tmp_path / "gone")
    assert not (tmp_path / "gone" / "d0" / "f21").exists()


def test_answer_leaves_out_what_is_large_or_not_there(afar: Afar) -> None:
    small, large = b"small", b"x" * (SMALL_BYTES + 1)
    contents = remote_contents(afar.client.http)
    digests = [contents.put(data) for data in (small, large)]
    absent = digest_of(b"absent")
    body = {"digests": [*digests, absent, digests[0]]}
    reply = afar.api.admin.call("POST", "/contents/get", json=body)
    assert list(read_frames([reply.content], most_bytes=SMALL_BYTES)) == [(digests[0], small)]
    assert afar.api.admin.post("/contents/missing", **body) == {"missing": [absent]}
    many = {"digests": [absent] * 1001}
    assert afar.api.admin.error(400, "POST", "/contents/get", json=many) == "malformed_request"


def test_contents_that_are_not_what_their_lines_say_are_refused(small_api: Api) -> None:
    good, lie = encode_frame(digest_of(b"good"), b"good"), encode_frame(Digest("a" * 64), b"lie")
    for body in (good + lie, good[:-1], b"nonsense", good + b"more"):
        error = small_api.admin.error(400, "POST", "/contents/put", content=body)
        assert error == "contents_garbled"
    body = encode_frame(digest_of(b"x" * (SMALL_BYTES + 1)), b"x" * (SMALL_BYTES + 1))
    assert small_api.admin.error(400, "POST", "/contents/put", content=body) == "contents_garbled"
    assert small_api.admin.call("HEAD", f"/contents/{'a' * 64}").status_code == 404


def test_file_changed_since_it_was_hashed_is_not_sent(afar: Afar, tmp_path: Path) -> None:
    files = {}
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
        files[digest_of(name.encode())] = tmp_path / name
    (tmp_path / "b").write_text("other")
    with pytest.raises(FileChanged):
        remote_contents(afar.client.http).put_files(files)
    keys = [key_of(digest) for digest in files]
    assert RemoteObjects(afar.client.http).find_missing(keys) == set(keys)
