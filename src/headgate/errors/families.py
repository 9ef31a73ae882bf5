"""The root of all errors, the families, and the templates that errors are written as.

An error declares its facts as typed fields and its sentence as a template over them:

    class BranchNotFound(NotFound, code="branch_not_found"):
        template = "dataset {dataset!r} has no branch {branch!r}. …"
        dataset: str
        branch: str

A type checker requires exactly these keywords of `BranchNotFound(…)`. A field of type `InitVar`
is part of the sentence but not a fact. An error whose facts are computed has an `__init__` instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from inspect import Parameter, Signature, get_annotations
from string import Formatter
from typing import Any, ClassVar, dataclass_transform


class _Sentence(Formatter):
    """Fills a template from the attributes of an error; None is written as "none".

    `{names:, }` joins a list with the text after the colon. `{reason:.}` ends a clause with one
    full stop, or with the question mark that it has. `{near:?}` ends it with the nearest name, if
    there is one.
    """

    def get_value(self, key: int | str, args: Any, kwargs: Any) -> Any:
        return getattr(args[0], str(key))

    def format_field(self, value: Any, format_spec: str) -> Any:
        if value is None:
            return "none"
        if format_spec == "?":
            return f"; did you mean {value[0]!r}?" if value else "."
        if format_spec and isinstance(value, list | tuple):
            return format_spec.join(value)
        if format_spec == ".":
            clause = value.rstrip(". ")
            return clause if clause.endswith("?") else f"{clause}."
        return super().format_field(value, format_spec)


_SENTENCE = _Sentence()
# Facts that name places of the machine; a reason may quote them.
_ADDRESSES = frozenset({"where", "location", "url", "warehouse", "reason"})
_KEYWORD = Parameter.KEYWORD_ONLY


@dataclass_transform(kw_only_default=True)
class HeadgateError(Exception):
    """The root: every error that Headgate raises on purpose."""

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False
    template: ClassVar[str]
    # The sentence for a client that may not see addresses and paths of the server, over declared
    # facts only; None if the template has none of them.
    public: ClassVar[str | None] = None
    # The declared fields as keywords; None where there are none, or an `__init__`.
    __signature__: ClassVar[Signature | None] = None

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts

    def __init_subclass__(cls, *, code: str | None = None, retryable: bool | None = None) -> None:
        super().__init_subclass__()
        if code is not None:
            cls.code = code
        if retryable is not None:
            cls.retryable = retryable
        if "__init__" in vars(cls):
            cls.__signature__ = None
        elif fields := get_annotations(cls):
            keywords = dict(cls.__signature__.parameters) if cls.__signature__ else {}
            for name, annotation in fields.items():
                default = vars(cls).get(name, Parameter.empty)
                keywords[name] = Parameter(name, _KEYWORD, default=default, annotation=annotation)
            cls.__signature__ = Signature(list(keywords.values()))
            cls.__init__ = _fill  # type: ignore[assignment]

    def __str__(self) -> str:
        return self.message

    def to_json(self) -> dict[str, Any]:
        """Return the error for a program: `{"error", "code", …facts}`."""
        return {"error": self.message, "code": self.code, **self.facts}

    def without_addresses(self) -> HeadgateError:
        """Return the same error without addresses and paths of this machine, for a stranger."""
        if self.public is None:
            return self
        facts = {name: fact for name, fact in self.facts.items() if name not in _ADDRESSES}
        return rebuild(type(self), _SENTENCE.vformat(self.public, (self,), {}), facts)


def _fill(self: HeadgateError, **given: Any) -> None:
    """Initialise an error that is declared by fields and a template."""
    # A subclass with its own `__init__` has no signature: this one is of the class above it.
    found = (vars(kind).get("__signature__") for kind in type(self).__mro__)
    signature: Signature = next(filter(None, found))
    bound = signature.bind(**given)
    bound.apply_defaults()
    vars(self).update(bound.arguments)
    facts = {
        name: list(value) if isinstance(value, list | tuple) else value
        for name, value in bound.arguments.items()
        if not signature.parameters[name].annotation.startswith("InitVar")
    }
    HeadgateError.__init__(self, _SENTENCE.vformat(self.template, (self,), {}), **facts)


class Invalid(HeadgateError, code="invalid"):
    """The request cannot succeed as it is: change it."""


class NotFound(HeadgateError, code="not_found"):
    """Something that the request names does not exist."""


class Exists(HeadgateError, code="exists"):
    """Something with that name already exists."""


class Conflict(HeadgateError, code="conflict"):
    """Another writer was first, or a fence rejected the change: read again, then decide."""


class Denied(HeadgateError, code="denied"):
    """The caller is not allowed to do this."""


class Unavailable(HeadgateError, code="unavailable", retryable=True):
    """A required part does not respond: try again, or repair it."""


class WorkFailed(HeadgateError, code="failed"):
    """The work itself failed: a build, a task, a check, or user code."""


@cache
def kinds_by_code() -> Mapping[str, type[HeadgateError]]:
    """Return the errors that have a code of their own; the others share their family's."""
    return {kind.code: kind for kind in kinds() if "code" in vars(kind)}


def kinds() -> list[type[HeadgateError]]:
    """Return the root, the families and every error of this package."""
    found: list[type[HeadgateError]] = [HeadgateError]
    for kind in found:
        found += [k for k in kind.__subclasses__() if k.__module__.startswith(__package__)]
    return found


def rebuild(kind: type[HeadgateError], message: str, facts: Mapping[str, Any]) -> HeadgateError:
    """Rebuild an error that another process raised, with the sentence that it wrote there."""
    error = kind.__new__(kind)
    vars(error).update(facts)
    HeadgateError.__init__(error, message, **facts)
    return error
