"""Identity of a repeated request."""

from __future__ import annotations

from headgate.model.changes import operation_key, request_hash


def test_operation_key_without_a_key_is_none() -> None:
    assert operation_key(None, actor="ana", kind="files-put", branch="m", request={}) is None


def test_operation_key_names_who_does_what_where() -> None:
    key = operation_key("k1", actor="ana", kind="files-put", branch="m", request={"a": 1})
    assert key is not None
    assert (key.principal, key.kind, key.branch, key.key) == ("ana", "files-put", "m", "k1")
    assert key.request_hash == request_hash("files-put", {"a": 1})


def test_request_hash_ignores_order_and_sees_everything_else() -> None:
    first = request_hash("branch-reset", {"dataset": "a.b", "to": "t-1"})
    assert first == request_hash("branch-reset", {"to": "t-1", "dataset": "a.b"})
    assert first != request_hash("branch-reset", {"dataset": "a.b", "to": "t-2"})
    assert first != request_hash("branch-delete", {"dataset": "a.b", "to": "t-1"})
    assert len(first) == 64
