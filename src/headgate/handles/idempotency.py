"""What makes a repeated command the same request; the rule is the model's."""

from __future__ import annotations

from headgate.model.asking import operation_key, request_hash

__all__ = ["operation_key", "request_hash"]
