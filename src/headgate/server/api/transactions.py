"""Routes of transactions, and of units of them: open, show, renew, commit and abort."""

from __future__ import annotations

from headgate.handles import TransactionHandle, UnitHandle
from headgate.handles.nouns import Json
from headgate.handles.wire import transaction_wire
from headgate.model.instants import instant_text
from headgate.server.api.asking import KeyDependency
from headgate.server.api.caller import CallerDependency
from headgate.server.api.models import TransactionModel, UnitModel
from headgate.server.api.replies import REPLAYED, JsonReply
from headgate.server.api.requests import InUnit, NewTransaction, NewUnit
from headgate.server.api.routing import documented, router
from headgate.store import Store

routes = router("transactions")


@routes.post("/transactions", **documented("open_transaction", TransactionModel, status=201))
def open_transaction(caller: CallerDependency, body: NewTransaction) -> JsonReply:
    """Opens a transaction on a branch of a dataset."""
    with caller.acting(body.branch) as store:
        branch = store.dataset(body.dataset).branch(body.branch)
        opened = branch.transaction(body.type, lease_seconds=body.lease_seconds)
        return JsonReply(transaction_wire(opened.transaction), status_code=201)


@routes.post("/units", **documented("open_unit", UnitModel, status=201))
def open_unit(caller: CallerDependency, body: NewUnit) -> JsonReply:
    """A unit: several datasets' transactions that commit or abort together."""
    with caller.acting(body.branch) as store:
        unit = store.transaction(branch=body.branch, lease_seconds=body.lease_seconds)
        return JsonReply(unit.noun(), status_code=201)


@routes.post("/units/{unit}/transactions", **documented("open_in_unit", TransactionModel))
def open_in_unit(caller: CallerDependency, unit: str, body: InUnit) -> JsonReply:
    """The unit's transaction on a dataset, opened at its first use."""
    with caller.acting(UnitHandle.load(caller.looking(), unit).branch) as store:
        opened = UnitHandle.load(store, unit).dataset(body.dataset)
        return JsonReply(transaction_wire(opened.transaction))


@routes.get("/transactions/{id}", **documented("show_transaction", TransactionModel | UnitModel))
def show_transaction(caller: CallerDependency, id: str) -> JsonReply:
    """A transaction, or a unit with all of its transactions."""
    store = caller.looking()
    return JsonReply(_noun(store, store.opened(id)))


@routes.post(
    "/transactions/{id}/renew", **documented("renew_transaction", TransactionModel | UnitModel)
)
def renew_transaction(caller: CallerDependency, id: str) -> JsonReply:
    """Its lease begins again."""
    with caller.acting(caller.looking().opened(id).branch) as store:
        opened = store.opened(id)
        opened.renew()
        return JsonReply(_noun(store, opened))


@routes.post(
    "/transactions/{id}/commit", **documented("commit_transaction", TransactionModel | UnitModel)
)
def commit_transaction(caller: CallerDependency, id: str, keyed: KeyDependency) -> JsonReply:
    """Commits it, or all of a unit's in one publication, whose number is in the reply."""
    with caller.acting(caller.looking().opened(id).branch) as store:
        opened = store.opened(id)
        operation = keyed.operation(
            actor=store.settings.actor,
            kind="txn-commit",
            branch=opened.branch,
            request={"transaction": opened.id},
        )
        receipt = opened.commit(operation=operation)
        # Of the operation, not of the transaction: so a client has the whole receipt.
        outcome = {
            "publication": receipt.publication,
            "operation": receipt.operation,
            "receipt": receipt.transactions,
            "at": instant_text(receipt.at),
        }
        headers = {REPLAYED: "true"} if receipt.replayed else None
        return JsonReply(_noun(store, opened) | outcome, headers=headers)


@routes.post(
    "/transactions/{id}/abort", **documented("abort_transaction", TransactionModel | UnitModel)
)
def abort_transaction(caller: CallerDependency, id: str) -> JsonReply:
    """Aborts it, or all of a unit's: nothing of them is ever visible."""
    with caller.acting(caller.looking().opened(id).branch) as store:
        opened = store.opened(id)
        opened.abort()
        return JsonReply(_noun(store, opened))


def _noun(store: Store, opened: TransactionHandle | UnitHandle) -> Json:
    if isinstance(opened, UnitHandle):
        return opened.noun()
    return transaction_wire(TransactionHandle.load(store, opened.id).transaction)
