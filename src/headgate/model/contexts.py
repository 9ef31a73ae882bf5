"""Contexts: what the names of tables mean to a client, written as a short text."""

import base64
import binascii
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias

from headgate.errors import InvalidContext, InvalidName
from headgate.model.ids import Instant, PublicationNumber, to_datetime
from headgate.model.names import check_branch_name

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,199}\Z")
_CLIENT = re.compile(r"[A-Za-z0-9]{1,64}\Z")
_NUMBER = re.compile(r"[0-9]{1,18}\Z")
_CHAIN_LIMIT = 32
_UNKNOWN_PREFIX = "it is not a prefix that /v1/config returned"


@dataclass(frozen=True, kw_only=True)
class BranchContext:
    """A branch with its read fallbacks; a write lands on the first of the chain."""

    chain: tuple[str, ...]

    @property
    def branch(self) -> str:
        return self.chain[0]

    @property
    def fallbacks(self) -> tuple[str, ...]:
        return self.chain[1:]

    def __str__(self) -> str:
        return ">".join(self.chain)


@dataclass(frozen=True, kw_only=True)
class MomentContext:
    """Branches as they were at one publication or time, or the datasets of a tag; read-only."""

    chain: tuple[str, ...]
    at: PublicationNumber | None = None
    at_time: Instant | None = None
    tag: str | None = None

    def __str__(self) -> str:
        if self.at is not None or self.tag is not None:
            return f"{'>'.join(self.chain)}@{self.tag or self.at}"
        return f"{'>'.join(self.chain)}@{to_datetime(self.at_time or Instant(0)).isoformat()}"


@dataclass(frozen=True, kw_only=True)
class UnitContext:
    """An OPEN transaction, or a unit of them."""

    id: str

    def __str__(self) -> str:
        return f"txn:{self.id}"


@dataclass(frozen=True, kw_only=True)
class JobContext:
    """One job attempt: its pinned inputs and its outputs' working versions."""

    id: str

    def __str__(self) -> str:
        return f"job:{self.id}"


Context: TypeAlias = BranchContext | MomentContext | UnitContext | JobContext


def parse_context(text: str) -> Context:
    """Return a branch, chain, moment (a publication, ISO time or tag after `@`), `txn:…`, `job:…`.

    A tag never has the name of a publication or time: see `is_moment`.
    """
    if text.startswith("txn:"):
        return UnitContext(id=_parse_id(text, text.removeprefix("txn:")))
    if text.startswith("job:"):
        return JobContext(id=_parse_id(text, text.removeprefix("job:")))
    names, at, moment = text.partition("@")
    chain = _parse_chain(text, names)
    if not at:
        return BranchContext(chain=chain)
    if _NUMBER.match(moment):
        return MomentContext(chain=chain, at=PublicationNumber(int(moment)))
    if is_moment(moment):
        return MomentContext(chain=chain, at_time=_parse_time(text, moment))
    try:
        return MomentContext(chain=chain, tag=check_branch_name(moment, what="tag"))
    except InvalidName as error:
        reason = f"{moment!r} is neither a publication number nor an ISO time, and not a tag's name"
        raise InvalidContext(context=text, reason=reason) from error


def is_plain(text: str) -> bool:
    """Return whether the text of a context can only be the name of a branch."""
    return not any(sign in text for sign in ">@")


def is_moment(text: str) -> bool:
    """Return whether the text after `@` is a publication number or an ISO time."""
    try:
        return bool(_NUMBER.match(text) or datetime.fromisoformat(text))
    except ValueError:
        return False


def is_writable(context: Context) -> bool:
    """Return whether the context can be written at all, regardless of the caller's rights."""
    return not isinstance(context, MomentContext)


def encode_prefix(context: Context, *, client: str = "") -> str:
    """Return a URL-safe word for a context; `client` distinguishes clients of one context."""
    word = base64.urlsafe_b64encode(str(context).encode()).decode().rstrip("=")
    return f"c-{word}.{client}" if client else f"c-{word}"


def decode_prefix(prefix: str) -> tuple[Context, str]:
    """Return the context and the client that `encode_prefix` was given."""
    word, dot, client = prefix.partition(".")
    if not word.startswith("c-") or (dot and not _CLIENT.match(client)):
        raise InvalidContext(context=prefix, reason=_UNKNOWN_PREFIX)
    body = word.removeprefix("c-")
    try:
        text = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
        return parse_context(text.decode()), client
    except (binascii.Error, UnicodeDecodeError, ValueError) as error:
        raise InvalidContext(context=prefix, reason=_UNKNOWN_PREFIX) from error


def _parse_chain(text: str, names: str) -> tuple[str, ...]:
    chain = tuple(name.strip() for name in names.split(">"))
    if len(chain) > _CHAIN_LIMIT:
        raise InvalidContext(context=text, reason=f"its chain is over {_CHAIN_LIMIT} branches")
    try:
        for name in chain:
            check_branch_name(name)
    except InvalidName as error:
        raise InvalidContext(context=text, reason=error.message.rstrip(".")) from error
    if len(set(chain)) != len(chain):
        raise InvalidContext(context=text, reason="a branch is in the chain twice")
    return chain


def _parse_id(text: str, id_: str) -> str:
    if not _ID.match(id_):
        raise InvalidContext(
            context=text, reason="its id is empty or has characters that ids do not have"
        )
    return id_


def _parse_time(text: str, moment: str) -> Instant:
    """Return an ISO 8601 time; one without a zone is in UTC, as Headgate prints times."""
    when = datetime.fromisoformat(moment)
    try:
        aware = (when if when.tzinfo else when.replace(tzinfo=UTC)).astimezone(UTC)
    except OverflowError as error:
        raise InvalidContext(
            context=text, reason=f"{moment!r} is outside the years 1 to 9999 in UTC"
        ) from error
    since = aware - datetime(1970, 1, 1, tzinfo=UTC)
    return Instant((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds)
