"""Many small contents as one stream of bytes: each a line that says what comes, then its bytes.

The line is `<sha256> <bytes>` and a line feed: whoever reads the stream knows at every place what
is whole, and that it is what it should be.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from headgate.errors import ContentsGarbled
from headgate.files.objects import Digest, digest_of

_LINE = re.compile(rb"([0-9a-f]{64}) (0|[1-9][0-9]{0,9})\Z")
# A digest, a space and ten digits.
_LONGEST_LINE = 75
_NO_LINE = "a line `<sha256> <bytes>` stands before each of them"


def framed(digest: Digest, data: bytes) -> bytes:
    """One content as a part of the stream."""
    return b"%s %d\n%s" % (digest.encode(), len(data), data)


def read_frames(chunks: Iterable[bytes], *, most_bytes: int) -> Iterator[tuple[Digest, bytes]]:
    """Each content once it is whole and verified; `ContentsGarbled` where one is not.

    A content of more than `most_bytes` is refused by its line: none of it is kept in memory.
    """
    buffer = bytearray()
    announced: tuple[Digest, int] | None = None
    for chunk in chunks:
        buffer += chunk
        at = 0
        while True:
            if announced is None:
                end = buffer.find(b"\n", at, at + _LONGEST_LINE + 1)
                if end < 0:
                    _check_may_be_a_line(len(buffer) - at)
                    break
                announced = _read_line(bytes(buffer[at:end]), most_bytes)
                at = end + 1
            digest, size = announced
            if len(buffer) - at < size:
                break
            yield _verified(digest, bytes(buffer[at : at + size]))
            at, announced = at + size, None
        del buffer[:at]
    if buffer or announced is not None:
        raise ContentsGarbled(reason="they were cut short")


def _check_may_be_a_line(length: int) -> None:
    if length > _LONGEST_LINE:
        raise ContentsGarbled(reason=_NO_LINE)


def _read_line(line: bytes, most_bytes: int) -> tuple[Digest, int]:
    found = _LINE.match(line)
    if found is None:
        raise ContentsGarbled(reason=_NO_LINE)
    digest, size = Digest(found[1].decode()), int(found[2])
    if size > most_bytes:
        reason = f"one has {size} bytes, and goes by itself above {most_bytes}"
        raise ContentsGarbled(reason=reason, digest=digest)
    return digest, size


def _verified(digest: Digest, data: bytes) -> tuple[Digest, bytes]:
    actual = digest_of(data)
    if actual != digest:
        raise ContentsGarbled(reason=f"the bytes of one have the digest {actual}", digest=digest)
    return digest, data
