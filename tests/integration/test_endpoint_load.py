"""A thousand requests of sixteen clients: no response is a failure, no commit is lost."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from tests.support.iceberg import TABLES, RestClient, Served, at, create, load
from tests.support.metadata import commit

_CLIENTS = 16
_REQUESTS = 1_000
_TABLES = 4


class Worker:
    """One client that loads and commits in turn, and records confirmed commits."""

    def __init__(self, client: RestClient, number: int) -> None:
        self._client = client
        self._number = number
        self.statuses: Counter[int] = Counter()
        self.landed: dict[str, set[int]] = {}

    def work(self, requests: int) -> None:
        turn = 0
        while self.statuses.total() < requests:
            name = f"t{(self._number + turn) % _TABLES}"
            self._append(name, 1 + self._number * _REQUESTS + turn)
            turn += 1

    def _append(self, name: str, snapshot_id: int) -> None:
        loaded = self._client.call("GET", f"{TABLES}/{name}?snapshots=all")
        self.statuses[loaded.status_code] += 1
        metadata = loaded.json()["metadata"]
        parent = metadata.get("current-snapshot-id")
        number = metadata["last-sequence-number"] + 1
        updates = commit(snapshot_id, parent=parent, **{"sequence-number": number})
        body = {"requirements": [at(parent)], "updates": updates}
        answer = self._client.call("POST", f"{TABLES}/{name}", body)
        self.statuses[answer.status_code] += 1
        if answer.status_code == 200:
            self.landed.setdefault(name, set()).add(snapshot_id)


def test_thousand_requests_of_sixteen_clients_break_nothing_and_lose_nothing(
    client: RestClient, served: Served
) -> None:
    names = [f"t{number}" for number in range(_TABLES)]
    for name in names:
        create(client, name)
    before = served.publications

    def one(number: int) -> Worker:
        with served.client("master") as own:
            worker = Worker(own, number)
            worker.work(-(-_REQUESTS // _CLIENTS))
            return worker

    with ThreadPoolExecutor(_CLIENTS) as pool:
        workers = list(pool.map(one, range(_CLIENTS)))
    statuses = sum((worker.statuses for worker in workers), Counter())
    assert statuses.total() >= _REQUESTS
    assert set(statuses) <= {200, 409}, statuses
    landed = {name: set().union(*(w.landed.get(name, set()) for w in workers)) for name in names}
    for name in names:
        shown = [one["snapshot-id"] for one in load(client, name)["metadata"]["snapshots"]]
        assert sorted(shown) == sorted(landed[name])
    assert served.publications - before == sum(map(len, landed.values())) > _CLIENTS
