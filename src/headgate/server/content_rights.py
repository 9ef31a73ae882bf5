"""Rights to contents, which are addressed by digest: who may read one, and who may use one.

A digest is not a right. A reader, and a token that patterns limit, reads a content only as part of
a tree of files that it may read, and names that tree with the request. A limited token also uses in
an edit only contents of such a tree, or contents that were uploaded with it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from headgate.catalog.records import is_location_shown
from headgate.errors import ContentDenied, ContentSwept, Invalid, ObjectNotFound
from headgate.files.objects import MOST_TREES, Digest
from headgate.files.tree import EMPTY
from headgate.model.access import Grant, Role
from headgate.tables.versions import WeighedCache

if TYPE_CHECKING:
    from headgate.store.embedded import Store

# Digests are kept by their first half, which is as good as unique.
_KEPT_CHARACTERS = 32
_KEPT_DIGESTS = 4_000_000
_KEPT_UPLOADS = 200_000


def parse_trees(header: str | None) -> tuple[Digest, ...]:
    """Return the roots in the header of a request."""
    found = tuple(Digest(root.strip()) for root in (header or "").split(",") if root.strip())
    if len(found) > MOST_TREES:
        raise Invalid(f"a request names at most {MOST_TREES} trees.")
    return found


class ContentRights:
    """Checks of requests for contents. Keeps the uploads of limited tokens in memory."""

    def __init__(self, store: Store) -> None:
        self._trees = store.trees
        self._members: WeighedCache[frozenset[str]] = WeighedCache(limit=_KEPT_DIGESTS)
        self._uploads: OrderedDict[tuple[str | None, str], None] = OrderedDict()
        self._lock = threading.Lock()

    def readable(
        self, store: Store, grant: Grant, digests: Sequence[Digest], trees: Sequence[Digest]
    ) -> list[Digest]:
        """Return those of the contents that the caller may read.

        :param store: the store as the caller may read it.
        """
        if grant.policy is None and grant.role is not Role.READER:
            return list(digests)
        shown = store.database.read(lambda c: [one for one in trees if is_location_shown(c, one)])
        members = frozenset().union(*map(self._members_of, shown))
        return [digest for digest in digests if digest[:_KEPT_CHARACTERS] in members]

    def check_readable(
        self, store: Store, grant: Grant, digest: Digest, trees: Sequence[Digest]
    ) -> None:
        """Raise unless the caller may read a content; the error does not tell whether it exists."""
        if not self.readable(store, grant, [digest], trees):
            if not trees:
                raise ContentDenied(digest=digest)
            raise ObjectNotFound(location=digest)

    def note_uploads(self, grant: Grant, digests: Iterable[str]) -> None:
        """Record that the caller has these contents, so that it may use them in an edit."""
        if grant.policy is None:
            return
        with self._lock:
            for digest in digests:
                self._uploads[grant.token, digest] = None
                self._uploads.move_to_end((grant.token, digest))
            while len(self._uploads) > _KEPT_UPLOADS:
                self._uploads.popitem(last=False)

    def known(
        self, store: Store, grant: Grant, digests: Iterable[Digest], trees: Sequence[Digest]
    ) -> set[Digest]:
        """Return those of the contents that the caller uploaded here or may read."""
        wanted = set(digests)
        if grant.policy is None:
            return wanted
        with self._lock:
            own = {digest for digest in wanted if (grant.token, digest) in self._uploads}
        return own | set(self.readable(store, grant, sorted(wanted - own), trees))

    def check_usable(
        self, store: Store, grant: Grant, digests: Iterable[Digest], trees: Sequence[Digest]
    ) -> None:
        """Raise unless an edit of the caller may use these contents; uploading one is enough."""
        wanted = set(digests)
        unknown = wanted - self.known(store, grant, wanted, trees)
        if unknown:
            raise ContentSwept(path=min(unknown))

    def check_tree(self, store: Store, grant: Grant, root: Digest, trees: Sequence[Digest]) -> None:
        """Raise unless the caller may use every object of an uploaded tree."""
        if grant.policy is not None and root != EMPTY:
            # The index first: the tree of a digest that the caller does not have is not read.
            self.check_usable(store, grant, [root], trees)
            self.check_usable(store, grant, self._trees.references([root]), trees)

    def _members_of(self, root: Digest) -> frozenset[str]:
        found = self._members.find(root)
        if found is None:
            needed = self._trees.references([root])
            found = frozenset(digest[:_KEPT_CHARACTERS] for digest in needed)
            self._members.put(root, found, weight=len(found) + 1)
        return found
