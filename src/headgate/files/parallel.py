"""Many small waits at once: what storage makes us wait for, a pool of threads waits for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_THREADS = 16

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_parallel(
    work: Callable[[Item], Result], items: Iterable[Item], *, ahead: int = 2 * _THREADS
) -> Iterator[Result]:
    """The results in the order of the items, at most `ahead` of them begun before they are asked
    for; the first error ends it, with nothing still under way.
    """
    if isinstance(items, Sized) and len(items) <= 1:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="headgate-files") as pool:
        under_way: deque[Future[Result]] = deque()
        try:
            for item in items:
                under_way.append(pool.submit(work, item))
                if len(under_way) >= ahead:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        finally:
            for future in under_way:
                future.cancel()
