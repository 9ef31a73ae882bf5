"""Access control: roles, patterns of branches and datasets, a rule for every route; pure."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any

from headgate.errors import AttemptOfAnother, BranchProtected, Invalid, RoleDenied
from headgate.model.names import check_label, parse_member, split_names


class Role(enum.StrEnum):
    READER = "reader"
    WRITER = "writer"
    ADMIN = "admin"


ALL = ("*",)


def check_patterns(patterns: Sequence[str], *, what: str) -> tuple[str, ...]:
    """Return the patterns of names that a token is limited to; at least one is required.

    :param what: name of the right in errors, such as "branches that it may write".
    """
    found = split_names(patterns)
    if not found:
        raise Invalid(f"a token needs the {what}: patterns such as `ana*`, or `*` for all.")
    return tuple(_check_pattern(pattern, what=what) for pattern in found)


# SQL and Python agree about sets of these characters, and names have no others.
_SET = re.compile(r"\[!?[A-Za-z0-9._/-]+\]")


def _check_pattern(pattern: str, *, what: str) -> str:
    check_label(pattern, what=f"a pattern of the {what}")
    outside = _SET.sub("", pattern)
    try:
        re.compile("".join(_SET.findall(pattern)))
        is_plain = "[" not in outside and "]" not in outside
    except re.error:
        # A range whose end comes before its start.
        is_plain = False
    if not is_plain:
        raise Invalid(
            f"{pattern!r} is not a pattern: `*` stands for any text, `?` for one character, and "
            "`[ab]`, `[a-f]` or `[!ab]` for one of a set of characters that names have.",
            pattern=pattern,
        )
    return pattern


class Right(enum.StrEnum):
    """A right that a request needs; each role has all rights up to its own."""

    READ = "read"
    WRITE = "write"
    # Code runs in the server's own processes, which needs more trust than data does.
    DELIVER_CODE = "publish code"
    ADMINISTER = "administer"


_RIGHTS = {
    Role.READER: frozenset({Right.READ}),
    Role.WRITER: frozenset({Right.READ, Right.WRITE}),
    Role.ADMIN: frozenset(Right),
}


# Keys of JSON documents whose values are names, and keys that are names of datasets themselves.
_BRANCH_KEYS = frozenset({"branch", "jobspec_branch", "fallback", "under", "was"})
_DATASET_KEYS = frozenset({"inputs", "outputs", "targets"})
_DATASET = re.compile(r"[\w-]+(\.[\w-]+)+")


@dataclass(frozen=True, kw_only=True)
class ReadPolicy:
    """What a limited token may read: the branches and datasets that match its patterns."""

    actor: str
    role: Role
    branches: tuple[str, ...]
    datasets: tuple[str, ...]

    def require_branches(self, names: Iterable[str]) -> None:
        """Raise unless every branch, which the caller named, may be read; it need not exist."""
        for name in names:
            if not self.shows_branch(name):
                raise self._denied(f"read branch {name!r} (only {', '.join(self.branches)})")

    def require_dataset(self, name: object) -> None:
        """Raise unless a dataset, which the caller named, may be read; it need not exist."""
        if not self.shows_dataset(name):
            raise self._denied(f"read dataset {name} (only {', '.join(self.datasets)})")

    def _denied(self, right: str) -> RoleDenied:
        return RoleDenied(actor=self.actor, role=self.role, right=right)

    def shows_branch(self, name: str) -> bool:
        return _matches(name, self.branches)

    def shows_dataset(self, name: object) -> bool:
        return _matches(str(name), self.datasets)

    def shows_pattern(self, pattern: str) -> bool:
        """Return whether all datasets that a pattern matches are shown."""
        return any(_lies_within(pattern, one) for one in self.datasets)

    def require_patterns(self, patterns: Iterable[str]) -> None:
        """Raise unless all datasets that the patterns match may be read; the error names none."""
        if not all(map(self.shows_pattern, patterns)):
            raise self._denied(f"protect other datasets (only {', '.join(self.datasets)})")

    def shown_part(self, document: Any) -> Any:
        """Return a JSON document without the datasets and branches that the policy hides.

        Objects about a hidden dataset, and its name in lists and as a key, are left out. The name
        of a hidden branch is null.
        """
        if isinstance(document, Mapping):
            kept = ((k, v) for k, v in document.items() if not self._hides_key(k))
            return {key: self._shown_value(key, value) for key, value in kept}
        if isinstance(document, list | tuple):
            return [self.shown_part(one) for one in document if not self._is_about_hidden(one)]
        return document

    def _shown_value(self, key: str, value: Any) -> Any:
        if isinstance(value, str) and key in _BRANCH_KEYS and not self.shows_branch(value):
            return None
        if isinstance(value, list | tuple) and key in _BRANCH_KEYS:
            return [one for one in value if self.shows_branch(str(one))]
        if isinstance(value, list | tuple) and key in _DATASET_KEYS:
            value = [v for v in value if not isinstance(v, str) or self.shows_dataset(v)]
        return None if self._is_about_hidden(value) else self.shown_part(value)

    def _is_about_hidden(self, value: Any) -> bool:
        named = value.get("dataset") if isinstance(value, Mapping) else None
        return isinstance(named, str) and not self.shows_dataset(named)

    def _hides_key(self, key: str) -> bool:
        return _DATASET.fullmatch(key) is not None and not self.shows_dataset(key)


@dataclass(frozen=True, kw_only=True)
class Grant:
    """The rights of a token, limited by patterns of names (`feature/*`, `gold.*`)."""

    actor: str
    role: Role
    # Branches that it may write.
    branches: tuple[str, ...] = ALL
    # Branches that it may read; they include those that it may write.
    reads: tuple[str, ...] = ALL
    # Datasets that it may read and write.
    datasets: tuple[str, ...] = ALL
    # The operator lets writers publish code, too.
    delivers_code: bool = False
    # Id of the token, for the record of denials; None before it is issued.
    token: str | None = field(default=None, compare=False)

    @property
    def may_write_protected(self) -> bool:
        return self.role is Role.ADMIN

    @property
    def policy(self) -> ReadPolicy | None:
        """What the token may read; None if it may read everything."""
        if "*" in self.reads and "*" in self.datasets:
            return None
        return ReadPolicy(
            actor=self.actor, role=self.role, branches=self.reads, datasets=self.datasets
        )

    @property
    def is_limited(self) -> bool:
        """Whether a pattern limits what the token may read or write."""
        return self.policy is not None or "*" not in self.branches


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The right that a route needs; one that writes branches names them before it acts."""

    right: Right
    names_branches: bool = False
    # It concerns the store as a whole: a token that patterns limit may not do it.
    whole_store: bool = False


_READ = Rule(right=Right.READ)
_WRITE_BRANCH = Rule(right=Right.WRITE, names_branches=True)
_WRITE = Rule(right=Right.WRITE)
# Code runs with the server's own access to data, so that no pattern can limit it.
_DELIVER_CODE = Rule(right=Right.DELIVER_CODE, names_branches=True)
_DELIVER_BUNDLE = Rule(right=Right.DELIVER_CODE)
_ADMINISTER = Rule(right=Right.ADMINISTER)
_ADMINISTER_STORE = Rule(right=Right.ADMINISTER, whole_store=True)
# The server reads files of any location for it, so that only admins may do it.
_ADMINISTER_BRANCH = Rule(right=Right.ADMINISTER, names_branches=True, whole_store=True)

_OPERATIONS = {
    _READ: """
        iceberg_read show_store list_datasets show_dataset show_content list_branches show_branch
        list_protected list_tags show_transaction list_files get_file find_content get_content
        find_missing_contents get_contents list_history list_publications show_publication
        list_events list_recoveries status list_jobspecs plan list_builds show_build build_logs
        watch_build show_workspace diff plan_schema
    """,
    # Actors work on their own builds only: see the route.
    _WRITE_BRANCH: """
        create_dataset create_branch delete_branch delete_branch_everywhere restore_branch
        reset_branch reparent_branch create_tag delete_tag open_transaction open_unit open_in_unit
        renew_transaction commit_transaction abort_transaction put_file delete_file edit_files
        start_build cancel_build work_build open_attempt_tables publish_workspace mutate load merge
        apply_schema optimize
    """,
    # Content that no branch shows, which every writer may upload; and bundles, which only callers
    # that may run code may read. Actors act for their own attempts only: see the routes. A task may
    # have no branch to move; if it has one, the route checks that branch too.
    _WRITE: """
        iceberg_write put_content put_contents get_bundle dispatch_attempt renew_attempt end_attempt
    """,
    _DELIVER_CODE: "publish_jobspecs",
    _DELIVER_BUNDLE: "put_bundle",
    _ADMINISTER: "protect_branch unprotect_branch list_tokens create_token revoke_token",
    _ADMINISTER_STORE: "recover clean_up examine",
    _ADMINISTER_BRANCH: "register_dataset",
}
# Every route of the HTTP API by its operation id, and every action on a context of the Iceberg
# endpoint. A route that is not here is denied to every caller.
RULES: Mapping[str, Rule] = MappingProxyType(
    {name: rule for rule, names in _OPERATIONS.items() for name in names.split()}
)


def rule_of(operation: str | None) -> Rule:
    """Return the rule of a route; a route without a rule is a defect, and is denied."""
    if operation is None or operation not in RULES:
        raise LookupError(f"there is no access rule for {operation}")
    return RULES[operation]


def authorize(grant: Grant, operation: str, *, written: Iterable[str] = ()) -> None:
    """Raise unless the grant may do this on every branch that it would write."""
    rule, branches = rule_of(operation), tuple(written)
    if rule.names_branches and not branches:
        raise LookupError(f"{operation} writes branches and did not name them")
    check_rule(grant, rule)
    require(grant, rule.right, written=branches)


def check_rule(grant: Grant, rule: Rule) -> None:
    """Raise unless the role of the grant, and its limits, allow what a rule is for."""
    require(grant, rule.right)
    if rule.whole_store and (grant.is_limited if rule.right is Right.ADMINISTER else grant.policy):
        raise _denied(grant, f"{rule.right} the whole store: its patterns limit the token")
    if rule.right is Right.DELIVER_CODE and grant.policy is not None:
        raise _denied(grant, "publish code, which the server runs with its own access to all data")


def require(grant: Grant, right: Right, *, written: Iterable[str] = ()) -> None:
    """Raise unless the grant has the right, and has it for every branch that is written."""
    if right not in _rights(grant):
        raise _denied(grant, right)
    for branch in written:
        if not _matches(branch, grant.branches):
            what = f"{right} on" if right is Right.DELIVER_CODE else right
            raise _denied(grant, f"{what} branch {branch!r} (only {', '.join(grant.branches)})")


def write_check(grant: Grant) -> Callable[[str, object], None] | None:
    """Return a check of a branch and a dataset that are written; None if all may be.

    Errors name what the caller wrote, so that they disclose nothing.
    """
    if Right.WRITE in _rights(grant) and "*" in grant.branches and "*" in grant.datasets:
        return None

    def check(branch: str, dataset: object) -> None:
        require(grant, Right.WRITE, written=(branch,))
        if not _matches(str(dataset), grant.datasets):
            raise _denied(grant, f"write dataset {dataset} (only {', '.join(grant.datasets)})")

    return check


class Protections(dict[str, tuple[str, ...]]):
    """Protected branch names, each with the patterns of the datasets on which it is protected."""

    def covers(self, branch: str, dataset: object) -> bool:
        return _matches(str(dataset), self.get(branch, ()))

    def check(self, branch: str, datasets: Iterable[object]) -> None:
        """Raise if the branch is protected on all datasets, or on one of these."""
        if "*" in self.get(branch, ()):
            raise BranchProtected(branch=branch)
        for dataset in datasets:
            if self.covers(branch, dataset):
                raise BranchProtected(branch=branch, dataset=str(dataset))

    def touches(self, namespace: str) -> bool:
        """Return whether a protected dataset may be in this namespace or below it."""
        starts = (re.split(r"[*?\[]", p)[0] for patterns in self.values() for p in patterns)
        inside = f"{namespace}."
        return any(one.startswith(inside) or inside.startswith(one) for one in starts)

    def shown_to(self, policy: ReadPolicy | None) -> Protections:
        """Return the part that a limited reader may know: a pattern names datasets."""
        if policy is None:
            return self
        kept = {
            name: tuple(p for p in patterns if p == "*" or policy.shows_pattern(p))
            for name, patterns in self.items()
        }
        return Protections({name: patterns for name, patterns in kept.items() if patterns})


def require_within(grant: Grant, other: Grant) -> None:
    """Raise unless another grant gives no more than this grant has."""
    for what, own, given in (
        ("write branches", grant.branches, other.branches),
        ("read branches", grant.reads, other.reads),
        ("read datasets", grant.datasets, other.datasets),
    ):
        for pattern in given:
            if not any(_lies_within(pattern, one) for one in own):
                right = f"grant the right to {what} {pattern!r} (only {', '.join(own)})"
                raise _denied(grant, right)


def is_within(grant: Grant, other: Grant) -> bool:
    """Return whether another grant gives no more than this grant has."""
    try:
        require_within(grant, other)
    except RoleDenied:
        return False
    return True


def make_grant(
    actor: str,
    role: Role | str,
    *,
    branches: Sequence[str],
    reads: Sequence[str],
    datasets: Sequence[str],
) -> Grant:
    """Return a grant of these rights; raise if it could write branches that it may not read."""
    grant = Grant(
        actor=check_label(actor, what="an actor"),
        role=parse_member(Role, role, what="role"),
        branches=check_patterns(branches, what="branches that it may write"),
        reads=check_patterns(reads, what="branches that it may read"),
        datasets=check_patterns(datasets, what="datasets that it may read and write"),
    )
    if grant.role is Role.READER:
        return grant
    for pattern in grant.branches:
        if not any(_lies_within(pattern, one) for one in grant.reads):
            raise Invalid(
                f"the token could write branches {pattern!r} without reading them: add the pattern "
                "to the branches that it may read, or name fewer branches to write.",
                pattern=pattern,
            )
    return grant


def _denied(grant: Grant, right: str) -> RoleDenied:
    return RoleDenied(actor=grant.actor, role=grant.role, right=right)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _lies_within(pattern: str, own: str) -> bool:
    """Return whether `own` certainly matches everything that the pattern matches."""
    if "[" in pattern or "[" in own:
        return own in ("*", pattern)
    # No branch name has this character, so that only a star or a question mark matches it.
    one = "\0"
    return all(
        fnmatchcase(pattern.replace("*", fill).replace("?", one), own)
        for fill in ("", one, one + one)
    )


def may_write(grant: Grant, branch: str) -> bool:
    """Return whether the grant may write this branch."""
    try:
        require(grant, Right.WRITE, written=(branch,))
    except RoleDenied:
        return False
    return True


def check_supersedable(grant: Grant, *, key: str, actor: str, branch: str | None) -> None:
    """Raise unless the grant may supersede an attempt: its actor's, an admin's, its branch's."""
    if grant.role is Role.ADMIN or actor == grant.actor:
        return
    if branch is None or not may_write(grant, branch):
        raise AttemptOfAnother(key=key, actor=actor)


def _rights(grant: Grant) -> frozenset[Right]:
    rights = _RIGHTS[grant.role]
    if grant.delivers_code and Right.WRITE in rights:
        return rights | {Right.DELIVER_CODE}
    return rights
