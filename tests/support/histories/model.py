"""A plain model of the store: the content of each dataset on each branch, by place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.support.histories.records import Content, Request, Value


@dataclass(kw_only=True)
class Model:
    """The newest state, and what resets and merges need of the past."""

    contents: dict[str, Content]
    views: dict[str, str | None]
    # By transaction.
    shown: dict[str, Content] = field(default_factory=dict)
    # The source's content at the fork, or at the last merge, by source and target.
    bases: dict[tuple[str, str], Content] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for place, view in self.views.items():
            if view is not None:
                self.shown[view] = self.contents[place]

    def effect(self, request: Request) -> dict[str, Content] | None:
        """Return the new contents of the places that change; None: its conditions do not hold."""
        if any(self.views.get(place) != view for place, view in request.heads.items()):
            return None
        if any(not self._holds(one.place, one.key, one.value) for one in request.when):
            return None
        if request.merge is not None:
            return self._merged(*request.merge)
        if request.reset is not None:
            place, transaction = request.reset
            if self.views.get(place) == transaction:
                return {}
            found = self.shown.get(transaction)
            return None if found is None else {place: found}
        new: dict[str, dict[str, Value]] = {}
        for write in request.writes:
            content = new.setdefault(write.place, dict(self.contents[write.place]))
            before = content.get(write.key)
            if write.add is not None and before is None:
                return None
            after = write.after(before)
            if after is None:
                content.pop(write.key, None)
            else:
                content[write.key] = after
        return {place: content for place, content in new.items() if content != self.contents[place]}

    def apply(
        self, request: Request | None, contents: Mapping[str, Content], views: Mapping[str, str]
    ) -> None:
        """Advance to a state of the log."""
        if request is not None and request.merge is not None:
            self.bases[request.merge] = self.contents[request.merge[0]]
        self.contents.update(contents)
        for place, view in views.items():
            self.views[place] = view
            self.shown[view] = self.contents[place]

    def _holds(self, place: str, key: str, mark: str) -> bool:
        row = self.contents[place].get(key)
        return row is not None and row[1] == mark

    def _merged(self, source: str, target: str) -> dict[str, Content] | None:
        """Return the target after a merge by key; None: both sides changed a key, differently."""
        ours, theirs = self.contents[source], self.contents[target]
        base = self.bases.get((source, target), {})
        new = dict(theirs)
        for key in {*ours, *theirs, *base}:
            one, other, before = ours.get(key), theirs.get(key), base.get(key)
            if one in (other, before):
                continue
            if other != before:
                return None
            if one is None:
                new.pop(key, None)
            else:
                new[key] = one
        return {target: new} if new != theirs else {}
