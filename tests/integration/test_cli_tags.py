"""A tag is readable wherever a moment is; deletion of a branch in use needs --force."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

import headgate
from headgate.catalog.attempts import dispatch_attempt
from headgate.catalog.builds import record_build_in
from headgate.connection import open as open_store
from headgate.errors import BranchInUse, InvalidName, TagNotFound
from headgate.model.ids import BuildId
from tests.support.cli import Cli, put
from tests.support.iceberg import TABLES, RestClient, Served, error, send, snapshot_of
from tests.support.metadata import commit


def test_tag_is_a_context_of_every_command_that_reads(cli: Cli) -> None:
    released = put(cli, "a.txt", "1")
    cli.ok("tag", "create", "raw.scans", "release-7", "--at", released)
    put(cli, "b.txt", "2")
    cli.ok("dataset", "create", "raw.untagged", "--kind", "files")
    for context in ("master@release-7", "other>master@release-7"):
        shown = cli.json("dataset", "show", "raw.scans", "-b", context)
        assert (shown["transaction"], shown["files"]) == (released, 1)
        listed = cli.json("files", "ls", "raw.scans", "-b", context)
        assert [file["path"] for file in listed] == ["a.txt"]
    cli.ok("files", "get", "raw.scans", "-b", "master@release-7", ".", "copy")
    assert [file.name for file in (cli.directory / "copy").iterdir()] == ["a.txt"]
    for words in (("diff", "raw.scans"), ("diff",)):
        found = cli.json(*words, "--from", "release-7", "--to", "master")
        [one] = found if isinstance(found, list) else [found]
        assert (one["from"], one["counts"]["added"]) == (released, 1)
    # A dataset without the tag does not exist in its context.
    missing = cli.json("dataset", "show", "raw.untagged", "-b", "master@release-7", code=3)
    assert missing["code"] == "tag_not_found" and "only the datasets that have it" in str(missing)
    wrong = cli.json("diff", "--from", "master@relase-7", "--to", "master", code=3)
    assert wrong["code"] == "tag_not_found" and wrong["near"] == ["release-7"]


def test_branch_is_reset_to_a_tag_and_created_at_one(cli: Cli) -> None:
    released = put(cli, "a.txt", "1")
    cli.ok("tag", "create", "raw.scans", "release-7", "--at", released)
    put(cli, "b.txt", "2")
    cli.ok("branch", "create", "raw.scans", "fix", "--from", "master", "--at", "release-7")
    [move] = cli.json("branch", "reset", "raw.scans", "master", "--to", "release-7")["moves"]
    assert move["to"] == released
    views = {b["name"]: b["view"] for b in cli.json("branch", "list", "raw.scans")}
    assert views == {"master": released, "fix": released}


@pytest.mark.parametrize("name", ["7", "2026-11-01", "20261101", "20261101T12"])
def test_tag_with_the_name_of_a_moment_is_refused(hg: headgate.Store, name: str) -> None:
    branch = hg.dataset("raw.scans").create(kind="files").branch("master")
    branch.put(__file__, "a")
    view = branch.load().view
    assert view is not None
    with pytest.raises(InvalidName, match="publication number or time"):
        branch.dataset.tag(name, at=view)
    branch.dataset.tag("2026-q3", at=view)
    with pytest.raises(TagNotFound):
        branch.dataset.untag("2026-q4")


def test_iceberg_client_reads_the_tables_of_a_tag(two_tables: RestClient, served: Served) -> None:
    tagged = served.history()[-1]
    served.store.dataset("db.t").tag("release-7", at=tagged.id)
    send(two_tables, *commit(2, parent=1))
    with served.client("master@release-7") as release:
        assert snapshot_of(release, "t") == 1
        assert [one["name"] for one in release.call("GET", TABLES).json()["identifiers"]] == ["t"]
        assert error(release.call("GET", f"{TABLES}/u")) == (404, "NoSuchTableException")
        assert send(release, *commit(3, parent=1)).status_code == 403
    assert snapshot_of(two_tables, "t") == 2
    refused = two_tables.http.get("/v1/config", params={"warehouse": "master@release-8"})
    assert refused.status_code == 404 and "did you mean 'release-7'?" in refused.text


def test_branch_that_is_in_use_is_deleted_with_force_only(cli: Cli) -> None:
    put(cli, "a.txt")
    for name, parent in (("busy", "master"), ("child", "busy"), ("building", "master")):
        cli.ok("branch", "create", "raw.scans", name, "--from", parent)
    cli.ok("txn", "open", "raw.scans", "-b", "child")
    with open_store(cli.directory) as store:
        attempt = dispatch_attempt(store.database, "build-1", actor="ana", lease_seconds=900).ref
        store.database.write(
            lambda c: record_build_in(
                c,
                id=BuildId("build-1"),
                branch="building",
                actor="ana",
                attempt=attempt,
                body={"targets": [], "fallback": []},
                planned=[],
            )
        )
    reasons = {
        "master": ["is the primary branch", "has child branches"],
        "busy": ["has child branches"],
        "child": ["has OPEN transactions"],
        "building": ["has running builds"],
    }
    before = cli.json("branch", "list")
    for name, uses in reasons.items():
        for words in (("raw.scans",), ("--all-datasets",)):
            refused = cli.json("branch", "delete", *words, name, code=4)
            assert (refused["code"], refused["uses"]) == ("branch_in_use", uses), name
            assert "--force" in refused["error"]
    assert cli.json("branch", "list") == before
    for name in ("child", "busy", "building"):
        cli.ok("branch", "delete", "raw.scans", name, "--force")
    cli.ok("branch", "delete", "--all-datasets", "master", "--force")
    assert cli.json("branch", "list") == []


def test_branch_in_use_is_refused_in_python_alike(hg: headgate.Store) -> None:
    dataset = hg.dataset("raw.scans").create(kind="files")
    dataset.branch("child").create("master")
    deletes: list[Callable[[], object]] = [
        lambda: dataset.branch("master").delete(),
        lambda: hg.delete_everywhere("master"),
    ]
    for delete in deletes:
        with pytest.raises(BranchInUse) as refused:
            delete()
        assert json.loads(json.dumps(refused.value.facts))["branch"] == "master"
    hg.delete_everywhere("master", force=True)
    assert [b.name for b in dataset.branches()] == ["child"]
