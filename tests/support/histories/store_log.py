"""Read the witness: the log of a store, and what it shows after each publication."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import httpx
from pyiceberg.catalog.rest import RestCatalog

from tests.support.histories import places
from tests.support.histories.checker import Publication, Witness
from tests.support.histories.other_clients import MARK
from tests.support.histories.places import DEV, MASTER, PLACES, TREE, place
from tests.support.histories.records import Content

_PAGE = 500


class StoreLog:
    """Reads by a server that answers, without a proxy."""

    def __init__(self, url: str, token: str) -> None:
        self._url, self._token = url, token
        headers = {"authorization": f"Bearer {token}"}
        self._http = httpx.Client(base_url=f"{url}/api/v1", headers=headers, timeout=60)
        self._shown = cache(self._read)

    def newest(self) -> int:
        return int(self._get("/log?limit=1").json()[0]["publication"])

    def contents(self) -> dict[str, Content]:
        """Return what each branch shows now."""
        return {one: self._read(*one.split("@")) for one in PLACES}

    def views(self) -> dict[str, str | None]:
        return {
            one: self._get(f"/branches/{one.replace('@', '/')}").json()["view"] for one in PLACES
        }

    def witness(
        self, start: int, contents: Mapping[str, Content], views: Mapping[str, str | None]
    ) -> Witness:
        """Return the log since a publication at which these were shown."""
        sides = (place(TREE, DEV), place(TREE))
        return Witness(
            start=start,
            contents=contents,
            views=views,
            bases={sides: contents[sides[0]]},
            publications=list(self._publications(start, contents)),
            final=self.contents(),
        )

    def _publications(self, start: int, contents: Mapping[str, Content]) -> Iterator[Publication]:
        events = dict(contents[place(places.EVENTS)])
        for logged in reversed(self._logged_since(start)):
            number = int(logged["publication"])
            found: dict[str, Content] = {}
            for move in logged["moves"]:
                at = place(move["dataset"], move["branch"])
                if move["dataset"] == places.EVENTS:
                    events = {**events, **self._appended(number, len(events))}
                    found[at] = events
                else:
                    context = f"{move['branch']}@{number}"
                    found[at] = self._shown(move["dataset"], context)
            yield Publication(
                number=number,
                contents=found,
                views={place(m["dataset"], m["branch"]): m["to"] for m in logged["moves"]},
                previous={place(m["dataset"], m["branch"]): m["from"] for m in logged["moves"]},
            )

    def _logged_since(self, start: int) -> list[Any]:
        """Return the publications after one, newest first."""
        found: list[Any] = []
        path = f"/log?limit={_PAGE}"
        while True:
            reply = self._get(path)
            found += [one for one in reply.json() if one["publication"] > start]
            following = reply.links.get("next")
            if following is None or reply.json()[-1]["publication"] <= start:
                return found
            path = str(following["url"]).removeprefix("/api/v1")

    def _appended(self, number: int, before: int) -> Content:
        """Return the row that a publication appended, by the property of its snapshot."""
        table = self._table(f"{MASTER}@{number}")
        snapshot = table.current_snapshot()
        summary = snapshot.summary.additional_properties if snapshot else {}
        rows = int(summary.get("total-records", 0))
        if rows != before + 1:
            return {f"{rows} rows in place of {before + 1}": True}
        return {summary.get(MARK, "a snapshot without an operation"): True}

    def _read(self, dataset: str, context: str) -> Content:
        if dataset == places.EVENTS:
            rows = self._table(context).scan().to_arrow()["id"].to_pylist()
            return {row: True if rows.count(row) == 1 else rows.count(row) for row in rows}
        if dataset in places.TABLES:
            reply = self._get(f"/datasets/{dataset}/content?context={context}&rows=1000").json()
            return {row["id"]: [row["n"], row["mark"]] for row in reply["rows"]}
        reply = self._get(f"/files/{dataset}?branch={context}&limit=1000").json()
        return {one["path"]: one["digest"][:16] for one in reply}

    def _table(self, context: str) -> Any:
        uri = f"{self._url}/iceberg"
        catalog = RestCatalog("headgate", uri=uri, warehouse=context, token=self._token)
        return catalog.load_table(places.EVENTS)

    def _get(self, path: str) -> httpx.Response:
        reply = self._http.get(path)
        assert reply.status_code == 200, (path, reply.status_code, reply.text)
        return reply

    def close(self) -> None:
        self._http.close()


def write_witness(witness: Witness) -> str:
    """Return the witness as JSON, to be looked at."""
    plain = {name: getattr(witness, name) for name in witness.__dataclass_fields__}
    plain["publications"] = [vars(one) for one in witness.publications]
    plain["bases"] = {f"{one} {other}": base for (one, other), base in witness.bases.items()}
    return json.dumps(plain, indent=1)
