"""Many small contents in one stream: complete in any chunks, rejected if damaged."""

from __future__ import annotations

import pytest

from headgate.errors import ContentsGarbled
from headgate.files.objects import SMALL_BYTES, batched, digest_of, encode_frame, read_frames

_CONTENTS = [b"", b"one", b"two\n" * 100, bytes(range(256))]
_STREAM = b"".join(encode_frame(digest_of(data), data) for data in _CONTENTS)


@pytest.mark.parametrize("size", [1, 7, 66, len(_STREAM)])
def test_contents_are_complete_in_any_chunks(size: int) -> None:
    chunks = [_STREAM[at : at + size] for at in range(0, len(_STREAM), size)]
    found = list(read_frames(chunks, most_bytes=400))
    assert found == [(digest_of(data), data) for data in _CONTENTS]


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (_STREAM[:-1], "cut short"),
        (_STREAM[:30], "cut short"),
        (_STREAM + b"\n", "a line"),
        (b"x" * 200, "a line"),
        (b"A" * 64 + b" 1\nx", "a line"),
        (b"a" * 64 + b" -1\n", "a line"),
        (b"a" * 64 + b" 1\nx", "have the digest"),
        (encode_frame(digest_of(b"x" * 401), b"x" * 401), "more than the 400 that"),
    ],
)
def test_damaged_stream_is_refused_after_its_good_contents(stream: bytes, reason: str) -> None:
    frames = read_frames([encode_frame(digest_of(b"y"), b"y"), stream], most_bytes=400)
    assert next(frames) == (digest_of(b"y"), b"y")
    with pytest.raises(ContentsGarbled, match=reason):
        list(frames)


def test_batches_are_bounded_by_count_and_by_bytes_and_large_ones_are_alone() -> None:
    sizes = [10] * 600 + [SMALL_BYTES + 1] + [SMALL_BYTES] * 40
    batches = list(batched(sizes, lambda size: size, together=True))
    assert sorted(size for batch in batches for size in batch) == sorted(sizes)
    assert [SMALL_BYTES + 1] in batches
    assert all(len(batch) <= 250 and sum(batch) <= 2 * 1024 * 1024 for batch in batches)
    assert len(batches) == 9
    assert list(batched([1, 2], lambda size: size, together=False)) == [[1], [2]]
