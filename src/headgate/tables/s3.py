"""Where S3 is, in Iceberg's words: what every client of a store is told, and never a secret."""

from __future__ import annotations

from collections.abc import Mapping

# Of two variables the first that is set counts, as for all S3 clients.
_ENDPOINT = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGION = ("AWS_REGION", "AWS_DEFAULT_REGION")
# Servers other than Amazon's mostly have no regions, but requests are signed for one.
_ANY_REGION = "us-east-1"
_ANONYMOUS = "software.amazon.awssdk.auth.credentials.AnonymousCredentialsProvider"


def client_properties(environ: Mapping[str, str]) -> dict[str, str]:
    """Endpoint, region and style of addresses by the AWS_* variables.

    Credentials are not among them: a client has its own, or shares the environment of this process.
    """
    endpoint, region = _first(environ, _ENDPOINT), _first(environ, _REGION)
    found: dict[str, str] = {}
    if endpoint:
        found["s3.endpoint"] = endpoint
        # A bucket's name before the host needs a name server that knows it.
        virtual = _is_true(environ.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST"))
        found["s3.path-style-access"] = "false" if virtual else "true"
    if region or endpoint:
        found["client.region"] = region or _ANY_REGION
    if _is_true(environ.get("AWS_SKIP_SIGNATURE")):
        found["client.credentials-provider"] = _ANONYMOUS
    return found


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((environ[name] for name in names if environ.get(name)), None)


def _is_true(text: str | None) -> bool:
    return (text or "").lower() in {"1", "true", "yes"}
