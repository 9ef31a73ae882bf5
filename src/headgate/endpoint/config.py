"""What a client is told first: its prefix, and what this endpoint can do."""

from __future__ import annotations

import secrets

from headgate.endpoint.ports import Action
from headgate.endpoint.replies import Reply, json_reply
from headgate.endpoint.routes import ROUTES
from headgate.endpoint.service import Service
from headgate.errors import InvalidContext
from headgate.model.contexts import encode_prefix, parse_context

# How long a client may repeat a request under its key.
IDEMPOTENCY_KEY_LIFETIME = "PT24H"


def get_config(service: Service, token: str | None, warehouse: str | None) -> Reply:
    """The settings of a client that asked for a context; each client gets a prefix of its own."""
    if not warehouse:
        raise InvalidContext(context="", reason="the catalog property 'warehouse' is not set")
    context = parse_context(warehouse)
    service.authorize(token, context, Action.READ)
    overrides = {
        "prefix": encode_prefix(context, client=secrets.token_hex(8)),
        # Statements then load with a `snapshots` parameter, which a refresh inside a commit lacks.
        "snapshot-loading-mode": "all",
        "rest-metrics-reporting-enabled": "false",
    }
    return json_reply(
        {
            "defaults": dict(service.client_defaults),
            "overrides": overrides,
            "endpoints": [route.advertised for route in ROUTES],
            "idempotency-key-lifetime": IDEMPOTENCY_KEY_LIFETIME,
        }
    )
