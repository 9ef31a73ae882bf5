"""What a command that publishes says when it is done."""

from __future__ import annotations

from headgate.cli.formatting import moves_text
from headgate.cli.output import note, show_json
from headgate.handles.nouns import publication_json, unpublished_json
from headgate.model.changes import Receipt
from headgate.model.nouns import Publication, PublicationKind
from headgate.store import Store


def show_receipt(store: Store, receipt: Receipt, *, kind: PublicationKind, json: bool) -> None:
    """The publication, or that nothing changed."""
    if not json:
        show_moves(store, receipt)
        return
    publication = _find(store, receipt)
    if publication is None:
        show_json(unpublished_json(receipt, kind=kind, actor=store.settings.actor))
    else:
        show_json(publication_json(publication))


def show_moves(store: Store, receipt: Receipt) -> None:
    """The same for a person."""
    publication = _find(store, receipt)
    if publication is None:
        note("nothing changed, so nothing was published.")
    else:
        note(f"publication {publication.number}: {moves_text(publication.moves)}")


def _find(store: Store, receipt: Receipt) -> Publication | None:
    number = receipt.publication
    if number is None:
        return None
    return store.publication(number)
