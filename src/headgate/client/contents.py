"""Contents of a served store: bytes by their digests, and the trees of files that it shows."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from headgate.builds.project import bundle_key
from headgate.client.http import HttpClient, segment
from headgate.errors import ContentsGarbled, Invalid, Unavailable
from headgate.files.objects import (
    SMALL_BYTES,
    Digest,
    Objects,
    batched,
    encode_frame,
    key_of,
    read_frames,
)
from headgate.files.transfer import Progress, download, relative_to
from headgate.files.tree import Entry
from headgate.model.object_store import ObjectInfo
from headgate.store.documents import to_entry
from headgate.store.transactions import ShownFiles

_DIGITS = 64


def remote_contents(http: HttpClient) -> Objects:
    """Return the contents of a served store; the client verifies their digests."""
    return Objects(RemoteObjects(http))


class RemoteObjects:
    """The part of an object store that jobs need: contents and bundles, by the server's keys.

    Other keys are rejected.
    """

    def __init__(self, http: HttpClient) -> None:
        self._http = http

    @property
    def url(self) -> str:
        return f"{self._http.url}/api/v1"

    def put(self, key: str, data: bytes) -> bool:
        return self._put(key, data)

    def put_file(self, key: str, source: Path, *, sha256: str | None = None) -> bool:
        return self._put(key, source)

    def _put(self, key: str, source: bytes | Path) -> bool:
        where = f"/contents/{_content(key)}"
        if self._http.exists(where):
            return False
        self._http.send_file(where, source)
        return True

    def put_hashed(self, source: Path, key_of: Callable[[str], str]) -> tuple[str, int]:
        with source.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        self.put_file(key_of(digest), source)
        return digest, source.stat().st_size

    def note_tree(self, key: str) -> None:
        self._http.note_tree(_content(key))

    def get(self, key: str) -> bytes:
        return b"".join(self.stream(key))

    def stream(self, key: str) -> Iterator[bytes]:
        digest = Path(key).stem
        if key == bundle_key(digest):
            return self._http.stream(f"/bundles/{digest}")
        return self._whole(f"/contents/{_content(key)}")

    def _whole(self, where: str) -> Iterator[bytes]:
        """Yield a content; a reply that is cut off is requested again if it brought new bytes."""
        came = 0
        while True:
            seen, before = 0, came
            try:
                for chunk in self._http.stream(where):
                    # The digest fixes the bytes, so that those already yielded are skipped.
                    fresh = chunk[max(0, came - seen) :]
                    seen += len(chunk)
                    if fresh:
                        came += len(fresh)
                        yield fresh
                return
            except Unavailable:
                if came == before:
                    raise

    # --- many contents per request ----------------------------------------------------------

    def find_missing(self, keys: Sequence[str]) -> set[str]:
        body = {"digests": [_content(key) for key in keys]}
        answer = self._http.request("POST", "/contents/missing", body=body, repeatable=True)
        return {key_of(digest) for digest in answer.document["missing"]}

    def get_many(self, keys: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """Yield contents; those missing from a reply are requested again if it brought some."""
        missing = {_content(key): key for key in keys}
        while missing:
            asked = len(missing)
            try:
                for digest, data in self._some_of(missing):
                    yield missing.pop(digest), data
            except Unavailable:
                if len(missing) == asked:
                    raise
            if len(missing) == asked:
                return

    def put_many(self, objects: Mapping[str, bytes]) -> None:
        for batch in batched(objects.items(), lambda one: len(one[1]), together=True):
            if len(batch) == 1:
                self.put(*batch[0])
                continue
            body = b"".join(encode_frame(_content(key), data) for key, data in batch)
            self._http.send_file("/contents/put", body, method="POST")

    def _some_of(self, missing: Mapping[Digest, str]) -> Iterator[tuple[Digest, bytes]]:
        """Yield the contents of one reply, up to the first frame that is garbled."""
        chunks = self._http.stream("/contents/get", body={"digests": list(missing)})
        try:
            for digest, data in read_frames(chunks, most_bytes=SMALL_BYTES):
                if digest in missing:
                    yield digest, data
        except ContentsGarbled:
            return

    def local_path(self, key: str) -> Path | None:
        return None

    def find(self, key: str) -> ObjectInfo | None:
        _refuse(key)

    def replace(self, key: str, data: bytes) -> None:
        _refuse(key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        _refuse(prefix)

    def sync(self, keys: Sequence[str]) -> None:
        _refuse(", ".join(keys))

    def delete(self, keys: Iterable[str]) -> None:
        _refuse(", ".join(keys))


def _content(key: str) -> Digest:
    digest = Digest("".join(key.split("/")[-2:]))
    if len(digest) != _DIGITS or key_of(digest) != key:
        _refuse(key)
    return digest


def _refuse(key: str) -> NoReturn:
    raise Invalid(f"{key!r} of a served store is for the server alone.", key=key)


@dataclass(frozen=True, kw_only=True)
class RemoteShownFiles(ShownFiles):
    """The tree of files of a branch, of a past transaction, or of an OPEN one."""

    http: HttpClient
    branch: str | None
    txn: str | None
    at: str | None

    def _walk(self, path: str) -> Iterator[Entry]:
        found = self.http.pages(
            f"/files/{segment(str(self.dataset))}",
            path=path or None,
            branch=self.branch,
            txn=self.txn,
            at=self.at,
        )
        return map(to_entry, found)

    def download(self, target: Path, path: str = "", *, progress: Progress | None = None) -> None:
        chosen = list(relative_to(self.entries(path), path.rstrip("/")))
        download(remote_contents(self.http), chosen, target, progress)
