"""The witness of a simulation: a model in memory of what was published and told, and its checks.

It reads the catalog's rows and the files by itself after every step, while no process runs, and
uses none of the catalog's rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headgate.errors import HeadgateError
from headgate.files.objects import Digest
from headgate.files.tree import EMPTY
from headgate.files.tree_store import FileTrees
from tests.support.simulation.verbs import DATASETS, KEYED, WRITTEN, Request

Row = Mapping[str, Any]
# The catalog and the store are damaged, or the product is wrong about that.
_NEVER = frozenset({"catalog_broken", "store_too_new", "store_too_old", "error"})


class Violation(AssertionError):
    """A promise that the simulated store has broken."""


class Catalog(Protocol):
    def rows(self, query: str) -> list[Row]:
        """Return the committed rows that a query selects."""


@dataclass(kw_only=True)
class Watched:
    """A request that a process executes, and what it may see meanwhile."""

    request: Request
    # The newest publication when the request began.
    since: int
    # Text of each content that the branch of the request showed since then.
    seen: list[dict[str, str] | None]
    # The loads that were acknowledged before.
    loaded: frozenset[str] = frozenset()


@dataclass(kw_only=True)
class _Transaction:
    id: str
    dataset: str
    parent: str | None
    closed_at: int
    inputs_key: str | None
    files: dict[str, str] | None


class Witness:
    """The model: publications, views, contents, epochs, holds and replies."""

    def __init__(self, catalog: Catalog, trees: FileTrees, *, retain_us: int) -> None:
        self._catalog = catalog
        self._trees = trees
        self._retain_us = retain_us
        self.number = 0
        self._last_at = 0
        self._latest_clock = 0
        self._datasets: dict[str, str] = {}
        self._branches: dict[str, tuple[str, str]] = {}
        self._views: dict[str, str | None] = {}
        self._moments: dict[int, dict[tuple[str, str], str | None]] = {}
        self._transactions: dict[str, _Transaction] = {}
        self._moved: dict[int, dict[str, str | None]] = {}
        # Publications that moved a view.
        self._showing: set[int] = set()
        self._epochs: dict[str, int] = {}
        self._ended: set[tuple[str, int]] = set()
        self._held: dict[str, set[str]] = {}
        # By key: the publication of the request, whether its reply arrived or not, and what each
        # text was published in.
        self._told: dict[str, int] = {}
        self._made: dict[str, set[int]] = {}
        self._sent: dict[str, int] = {}
        self._loads: set[str] = set()
        self.published = 0

    # --- after every step -------------------------------------------------------------------

    def observe(self, request: Request | None, watched: Sequence[Watched], clock: int) -> None:
        """Read what the last step has published, in the name of this request, and check it."""
        self._latest_clock = max(self._latest_clock, clock)
        [counter] = self._catalog.rows("SELECT number, last_at FROM log_counter")
        self._check(counter["number"] >= self.number, "the log lost a publication")
        if counter["number"] > self.number:
            self._read_publications(request)
            self._check(counter["number"] == self.number, "the log's numbers have a gap")
            self._check(counter["last_at"] == self._last_at, "the log's counter has another time")
            for one in watched:
                self._note_content(one)
        self._check_views()
        self._read_attempts()

    def views(self) -> dict[tuple[str, str], str | None]:
        """Return the view of each branch, by dataset and name."""
        return {self._branches[id]: view for id, view in self._views.items()}

    def watch(self, request: Request) -> Watched:
        # Of a repeated request: when it was sent first.
        since = self._sent.setdefault(request.key, self.number)
        watched = Watched(request=request, since=since, seen=[], loaded=frozenset(self._loads))
        self._note_content(watched)
        return watched

    def _read_publications(self, request: Request | None) -> None:
        new = f"> {self.number}"
        publications = self._catalog.rows(
            f"SELECT number, at, kind FROM publications WHERE number {new} ORDER BY number"
        )
        moves = self._catalog.rows(
            "SELECT publication, dataset_id, branch_id, branch_name, from_id, to_id, change "
            f"FROM moves WHERE publication {new} ORDER BY publication, ordinal"
        )
        transactions = self._catalog.rows(
            "SELECT t.id, t.dataset_id, t.parent_id, t.state, t.closed_at, t.attempt_key, "
            "t.attempt_epoch, t.unit_id, t.publication, t.inputs_key, v.location "
            "FROM transactions t LEFT JOIN versions v ON v.id = t.version_id "
            f"WHERE t.publication {new}"
        )
        self._datasets |= {
            row["id"]: f"{row['namespace']}.{row['name']}"
            for row in self._catalog.rows("SELECT id, namespace, name FROM datasets")
        }
        for row in transactions:
            self._add_transaction(row)
        for row in publications:
            number = row["number"]
            self._check(number == self.number + 1, f"publication {number} follows {self.number}")
            self._check(row["at"] > self._last_at, f"publication {number} is not later")
            self.number, self._last_at = number, row["at"]
            mine = [move for move in moves if move["publication"] == number]
            self._check(bool(mine), f"publication {number} moves nothing")
            self._replay(row["kind"], mine, request)
            if request is not None and request.verb in KEYED:
                first = self._told.setdefault(request.key, number)
                self._check(first == number, f"{request} was published in {first} and {number}")
            self._moments[number] = self.views()
            self.published += 1
        self._check_units(transactions)

    def _add_transaction(self, row: Row) -> None:
        name = self._datasets[row["dataset_id"]]
        files = None
        if name in DATASETS:
            files = self._read_files(row["location"], f"{name} at {row['id']}")
        self._transactions[row["id"]] = _Transaction(
            id=row["id"],
            dataset=name,
            parent=row["parent_id"],
            closed_at=row["closed_at"],
            inputs_key=row["inputs_key"],
            files=files,
        )
        if row["attempt_key"] is not None:
            key, epoch = row["attempt_key"], row["attempt_epoch"]
            self._check(
                epoch >= self._epochs.get(key, 0) and (key, epoch) not in self._ended,
                f"attempt {epoch} of {key!r} published, and {self._epochs.get(key)} is the newest",
            )
        before = self._transactions.get(row["parent_id"]) if row["parent_id"] else None
        earlier = (before.files if before else None) or {}
        for path, text in (files or {}).items():
            if (
                name in WRITTEN
                and path != "probe"
                and text.startswith("k")
                and earlier.get(path) != text
            ):
                self._made.setdefault(text, set()).add(row["publication"])
                self._check(
                    len(self._made[text]) == 1,
                    f"request {text} was published in {sorted(self._made[text])}",
                )

    def _read_files(self, location: str | None, what: str) -> dict[str, str]:
        root = Digest(location) if location else EMPTY
        try:
            return {
                entry.path: self._trees.read(entry).decode()
                for entry in self._trees.walk(root)
                if not entry.is_directory
            }
        except HeadgateError as error:
            raise Violation(f"{what} cannot be read: {error}") from error

    def _replay(self, kind: str, moves: Sequence[Row], request: Request | None) -> None:
        for move in moves:
            id, before, after = move["branch_id"], move["from_id"], move["to_id"]
            name = (self._datasets[move["dataset_id"]], move["branch_name"])
            if move["change"] in ("created", "restored"):
                self._check(id not in self._views, f"{name} was made twice")
                self._branches[id] = name
            else:
                self._check(
                    self._views.get(id, "no branch") == before,
                    f"publication {self.number} moves {name} from {before}, and it showed "
                    f"{self._views.get(id, 'no branch')}",
                )
            self._views[id] = after
            if move["change"] == "deleted":
                del self._views[id]
            elif after is not None and move["change"] == "moved":
                self._check_held(kind, id, before, after, request)
        self._moved[self.number] = {m["branch_id"]: m["to_id"] for m in moves}
        if any(move["change"] == "moved" for move in moves):
            self._showing.add(self.number)

    def _check_held(
        self, kind: str, branch: str, before: str | None, after: str, request: Request | None
    ) -> None:
        held = self._held.setdefault(branch, set())
        key = self._transactions[after].inputs_key
        if kind == "reset":
            shown, removed = self._keys(after), self._keys(before)
            held |= removed - shown
            held -= shown
        elif key in held:
            is_forced = request is not None and request.verb == "build" and request.is_forced
            self._check(
                is_forced,
                f"publication {self.number} brings back what a reset of "
                f"{self._branches[branch]} removed",
            )
            held.discard(key)

    def _keys(self, id: str | None) -> set[str]:
        return {key for one in self._history(id) if (key := self._transactions[one].inputs_key)}

    def _history(self, id: str | None) -> list[str]:
        found = []
        while id is not None and id in self._transactions:
            found.append(id)
            id = self._transactions[id].parent
        return found

    def _check_units(self, transactions: Sequence[Row]) -> None:
        units = {row["unit_id"] for row in transactions if row["unit_id"] is not None}
        for unit in sorted(units):
            rows = self._catalog.rows(
                f"SELECT state, publication FROM transactions WHERE unit_id = '{unit}'"
            )
            states = {(row["state"], row["publication"]) for row in rows}
            self._check(len(states) == 1, f"unit {unit} is not whole: {states}")

    def _check_views(self) -> None:
        rows = self._catalog.rows(
            "SELECT b.id, b.view_id, b.name, v.condemned_at FROM branches b "
            "LEFT JOIN transactions t ON t.id = b.view_id "
            "LEFT JOIN versions v ON v.id = t.version_id"
        )
        views = {row["id"]: row["view_id"] for row in rows}
        self._check(views == self._views, "a view is not the one of the log")
        condemned = [row["name"] for row in rows if row["condemned_at"] is not None]
        self._check(not condemned, f"the views of {condemned} are condemned")

    def _read_attempts(self) -> None:
        for row in self._catalog.rows("SELECT key, epoch FROM task_keys"):
            before = self._epochs.get(row["key"], 0)
            self._check(row["epoch"] >= before, f"the epoch of {row['key']} went back")
            self._epochs[row["key"]] = row["epoch"]
        rows = self._catalog.rows(
            "SELECT key, epoch FROM attempts WHERE state IN ('superseded', 'canceled', 'failed')"
        )
        self._ended = {(row["key"], row["epoch"]) for row in rows}

    def _note_content(self, watched: Watched) -> None:
        content = self._content_of(watched.request)
        if not watched.seen or watched.seen[-1] != content:
            watched.seen.append(content)

    def _content_of(self, request: Request) -> dict[str, str] | None:
        """Return what the branch of a reading request shows; None if there is no branch."""
        name = (DATASETS[request.a % len(DATASETS)], request.branch)
        for id, view in self._views.items():
            if self._branches[id] == name:
                return self._files(view)
        return None

    def _files(self, id: str | None) -> dict[str, str]:
        return (self._transactions[id].files or {}) if id is not None else {}

    # --- after a request --------------------------------------------------------------------

    def hear(self, watched: Watched, value: Mapping[str, Any]) -> None:
        """Check the reply of a request against the model."""
        request = watched.request
        if value.get("publication") is not None:
            self._hear_publication(watched, value)
        match request.verb:
            case "read":
                self._check(value["files"] in watched.seen, f"{request} read what was never shown")
            case "moment":
                self._hear_moment(value)
            case "task" if value["ref"] is not None:
                files, path = self._files(value["ref"]), f"f{request.c % 3}"
                self._check(files.get(path) == request.key, f"{request} published another file")
            case "task":
                self._check(bool(value["code"]), f"{request} failed: {value['trace']}")
            case "build":
                for number in value["publications"]:
                    self._check(watched.since < number <= self.number, "a build of the future")
                # Those that only make branches show nothing.
                shown = [number for number in value["publications"] if number in self._showing]
                is_whole = request.a % 3 != 0 or len(shown) <= 1
                self._check(is_whole, "an atomic build has several publications")
            case "load" if "words" in value:
                words = value["words"]
                self._check(len(words) == len(set(words)), f"rows were loaded twice: {words}")
                lost = watched.loaded - set(words)
                self._check(not lost, f"acknowledged rows {lost} are lost")
            case "load":
                self._loads.add(value["loaded"])

    def _hear_publication(self, watched: Watched, value: Mapping[str, Any]) -> None:
        request, number = watched.request, value["publication"]
        self._check(number <= self.number, f"{request} was told {number}, which is not published")
        first = self._told.setdefault(request.key, number)
        self._check(first == number, f"{request} was told {first}, and {number} later")
        self._check(number > watched.since, f"{request} was published before it was sent")
        if "transactions" not in value:
            return
        self._check(
            dict(value["transactions"]) == self._moved[number],
            f"{request} was told {value['transactions']}, and {self._moved[number]} is published",
        )
        if request.verb in ("put", "commit", "unit"):
            shown = [self._files(to) for to in value["transactions"].values()]
            self._check(
                any(files.get(request.path) == request.text for files in shown),
                f"{request} is acknowledged, and its text is not in {shown}",
            )

    def hear_refusal(self, watched: Watched, code: str, message: str) -> None:
        is_wrong = code in _NEVER or watched.request.verb == "probe"
        self._check(not is_wrong, f"{watched.request}: {code}: {message}")

    def _hear_moment(self, value: Mapping[str, Any]) -> None:
        views, kept = self._moments[value["number"]], self._kept()
        for name, files in value["files"].items():
            view = views.get((name, "master"))
            if files is None:
                self._check(view not in kept, f"{name} at {value['number']} has expired too early")
            else:
                self._check(
                    files == self._files(view), f"{name} changed at the moment {value['number']}"
                )

    # --- now and then -----------------------------------------------------------------------

    def examine(self) -> None:
        """Read all content that must be readable, and compare it with the model."""
        for id in sorted(self._kept()):
            one = self._transactions[id]
            if one.files is None:
                continue
            [row] = self._catalog.rows(
                "SELECT v.location, v.condemned_at FROM transactions t "
                f"LEFT JOIN versions v ON v.id = t.version_id WHERE t.id = '{id}'"
            )
            what = f"{one.dataset} at {id}"
            self._check(row["condemned_at"] is None, f"{what} is needed, and condemned")
            self._check(self._read_files(row["location"], what) == one.files, f"{what} changed")

    def _kept(self) -> set[str]:
        """Return the transactions whose content cleanup keeps, by the rules of the design."""
        horizon = self._latest_clock - self._retain_us
        kept = {
            row["transaction_id"] for row in self._catalog.rows("SELECT transaction_id FROM tags")
        }
        for view in self._views.values():
            for id in self._history(view):
                kept.add(id)
                if self._transactions[id].closed_at < horizon:
                    break
        return kept

    def _check(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise Violation(otherwise)
