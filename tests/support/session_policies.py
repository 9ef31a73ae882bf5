"""What a policy document of S3 allows, by the rules of IAM: as the store would decide."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any


def allows(document: Any, action: str, resource: str, **context: str) -> bool:
    """Return whether a statement allows an action on `bucket` or `bucket/key`.

    The context has the keys that conditions compare, such as `s3:prefix` as `s3_prefix`.
    """
    values = {name.replace("_", ":", 1).lower(): value for name, value in context.items()}
    return any(
        statement["Effect"] == "Allow"
        and any(_matches(one, action) for one in _listed(statement["Action"]))
        and any(_matches(one, f"arn:aws:s3:::{resource}") for one in _listed(statement["Resource"]))
        and all(
            _holds(operator, wanted, values)
            for operator, wanted in statement.get("Condition", {}).items()
        )
        for statement in document["Statement"]
    )


def _listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else value


def _holds(operator: str, wanted: dict[str, Any], values: dict[str, str]) -> bool:
    for key, patterns in wanted.items():
        value = values.get(key.lower())
        if value is None:
            return False
        if operator == "StringLike":
            if not any(_matches(one, value) for one in _listed(patterns)):
                return False
        elif operator == "DateLessThan":
            if datetime.fromisoformat(value) >= datetime.fromisoformat(patterns):
                return False
        else:
            raise AssertionError(f"the condition {operator} is not known here")
    return True


def _matches(pattern: str, text: str) -> bool:
    special = {"*": ".*", "?": ".", "${*}": r"\*", "${?}": r"\?", "${$}": r"\$"}
    parts = re.findall(r"\$\{.\}|.", pattern, re.DOTALL)
    written = "".join(special.get(part, re.escape(part)) for part in parts)
    return re.fullmatch(written, text, re.DOTALL) is not None
