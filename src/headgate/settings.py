"""Configuration: the only reader of the environment and of `headgate.toml`."""

import difflib
import getpass
import math
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from headgate.errors import Invalid, NotFound
from headgate.model.names import LONGEST_SECONDS, check_label

FILE_NAME = "headgate.toml"
DAY_SECONDS = 24 * 3600

_TABLES = {"spark.conf"}
_LISTS = {"builds.fallback", "store.allowed_locations", "store.access_delegation"}
# Variables without a key in the file, and prefixes that only variables of keys have.
_VARIABLES = ("url", "token", "actor", "cache")
_SECTION_VARIABLES = tuple(
    f"HEADGATE_{name}_" for name in ("STORE", "SPARK", "BUILDS", "TASKS", "SERVER")
)
# The similarity from which on a name counts as a misspelling of another.
_SIMILARITY = 0.9
_SECRET = re.compile(r"secret|password|access\.?-?key|session\.?-?token", re.IGNORECASE)
_ADOPT = ("any", "chain", "off")
# How clients get access to a warehouse in S3, by the names of the Iceberg REST protocol.
VENDED_CREDENTIALS, REMOTE_SIGNING = _DELEGATION = ("vended-credentials", "remote-signing")


@dataclass(frozen=True, kw_only=True)
class SparkSettings:
    master: str = "local[*]"
    remote: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    endpoint: str | None = None


@dataclass(frozen=True, kw_only=True)
class BuildSettings:
    # The primary branch: the default of `dataset create --branch` and of the fallback.
    branch: str = "master"
    fallback: tuple[str, ...] | None = None
    adopt: str = "any"

    def fallback_of(self, branch: str) -> tuple[str, ...]:
        """Return the default fallbacks of a build: as configured, else the primary branch."""
        names = (self.branch,) if self.fallback is None else self.fallback
        return tuple(name for name in names if name != branch)


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Limits of a server, for each of its processes."""

    # At most half of the files that the process may open.
    connections: int = 1000
    connections_per_address: int = 250
    document_bytes: int = 16 * 1024**2
    # Of one file or content.
    upload_bytes: int = 64 * 1024**3
    # Until the headers of a request are complete, and between two requests without a token.
    header_seconds: float = 10
    # Without progress of a request's body, or of a response.
    stall_seconds: float = 60
    # Until a response begins. Uploads have no such limit; a stream may last longer once begun.
    answer_seconds: float = 300
    # Between two requests with a token. Long: to Spark, a closed connection is a lost commit.
    idle_seconds: float = 600
    # Streams of a build's progress.
    streams_per_actor: int = 32
    # Scripts and loads that run at once, and the limits of each.
    statements: int = 4
    statement_seconds: float = 240
    statement_memory_bytes: int = 2 * 1024**3
    script_bytes: int = 1024**2
    # Of brackets within brackets.
    script_depth: int = 100


def _keys(section: type[SparkSettings | BuildSettings | ServerSettings]) -> tuple[str, ...]:
    return tuple(one.name for one in fields(section))


# All keys by section; each may be overridden by HEADGATE_<SECTION>_<KEY>.
_KNOWN = {
    "store": (
        "catalog",
        "warehouse",
        "retain",
        "allowed_locations",
        "access_delegation",
        "sts_endpoint",
        "sts_role_arn",
    ),
    "spark": _keys(SparkSettings),
    "builds": _keys(BuildSettings),
    "tasks": ("root",),
    "conductor": ("url",),
    "lakefs": ("endpoint",),
    "server": _keys(ServerSettings),
}
_NUMBERS = {f"server.{key}" for key in _KNOWN["server"]}


@dataclass(frozen=True, kw_only=True)
class LineageSettings:
    """The receiver of OpenLineage events, from the variables that other clients also read."""

    url: str
    endpoint: str = "api/v1/lineage"
    namespace: str = "headgate"
    api_key: str | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a store; paths are absolute, secrets come only from variables."""

    root: Path
    catalog: str
    warehouse: str
    retain_seconds: int = 30 * DAY_SECONDS
    # Outside the warehouse, where tables may lie and may have files.
    allowed_locations: tuple[str, ...] = ()
    # Ways in which clients get access to a warehouse in S3, the preferred one first.
    access_delegation: tuple[str, ...] = ()
    sts_endpoint: str | None = None
    sts_role_arn: str | None = None
    spark: SparkSettings = field(default_factory=SparkSettings)
    builds: BuildSettings = field(default_factory=BuildSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    tasks_root: Path | None = None
    conductor_url: str | None = None
    lakefs_endpoint: str | None = None
    lineage: LineageSettings | None = None
    server_url: str | None = None
    token: str | None = field(default=None, repr=False)
    actor: str = "unknown"
    cache: Path = field(default_factory=Path)
    # For parts that start processes or need credentials; never logged.
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)


def find_settings_file(start: Path) -> Path | None:
    """Return the nearest `headgate.toml` in a directory or above it."""
    for directory in (start, *start.parents):
        candidate = directory / FILE_NAME
        if candidate.is_file():
            return candidate
    return None


def load_settings(
    start: Path | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    server_url: str | None = None,
) -> Settings:
    """Return the settings of the file, overridden by HEADGATE_* variables.

    An unknown key or variable is an error. A client of a server needs no file.
    """
    environ = dict(os.environ) if environ is None else environ
    here = (start or Path.cwd()).absolute()
    file = here if here.is_file() else find_settings_file(here)
    values = _read(file) if file else {}
    overrides = _overrides(environ)
    # Spark has one location: a variable for one kind removes the file's setting of the other.
    for one, other in (("spark.master", "spark.remote"), ("spark.remote", "spark.master")):
        if one in overrides:
            values.pop(other, None)
    values |= overrides
    root = file.parent if file else here
    elsewhere = server_url or environ.get("HEADGATE_URL")
    if not file and "store.catalog" not in values and not elsewhere:
        raise NotFound(
            f"there is no {FILE_NAME} in {here} or above it. Create a store with `headgate init`, "
            "or set HEADGATE_URL to a server."
        )
    return _build(root, values, environ)


def split_endpoint(url: str) -> tuple[str, int | None]:
    """Return host and port of a `[spark] endpoint`; port 0 is any free port of this machine."""
    try:
        parts = urlsplit(url)
        if parts.scheme in {"http", "https"} and parts.hostname:
            return parts.hostname, parts.port
    except ValueError:
        pass
    raise Invalid(
        f"spark.endpoint is {url!r}; it must be a URL such as http://host:8181/iceberg.", url=url
    )


def default_actor(environ: Mapping[str, str]) -> str:
    """Return HEADGATE_ACTOR, else the user of the operating system."""
    if environ.get("HEADGATE_ACTOR"):
        return check_label(environ["HEADGATE_ACTOR"], what="an actor")
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid:{os.getuid()}"


def parse_duration_seconds(text: str, *, what: str) -> int:
    """Return the seconds of `30d`, `24h`, `15m`, `45s`, or a plain number."""
    match = re.fullmatch(r"(\d+)([smhd]?)", text.strip())
    if match is None:
        raise Invalid(f"{what} {text!r} is not a duration: write 30d, 24h, 15m or 45s.")
    unit = {"": 1, "s": 1, "m": 60, "h": 3600, "d": DAY_SECONDS}[match[2]]
    # Python does not parse numbers of very many digits.
    seconds = int(match[1]) * unit if len(match[1]) < 20 else LONGEST_SECONDS + 1
    if seconds > LONGEST_SECONDS:
        raise Invalid(f"{what} {text!r} is too long: write a hundred years at most.")
    return seconds


def with_actor(settings: Settings, actor: str | None) -> Settings:
    return replace(settings, actor=check_label(actor, what="an actor")) if actor else settings


def with_server(settings: Settings, *, url: str, token: str | None) -> Settings:
    """Return the settings for a server; the default token is HEADGATE_TOKEN."""
    return replace(settings, server_url=url, token=token or settings.token)


def _read(file: Path) -> dict[str, Any]:
    try:
        document = tomllib.loads(file.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"{file} cannot be read: {error}.", file=str(file)) from error
    except OSError as error:
        raise Invalid(f"{file} cannot be read: {error.strerror}.", file=str(file)) from error
    values: dict[str, Any] = {}
    for section, content in document.items():
        if section not in _KNOWN:
            raise _unknown(f"section [{section}]", section, _KNOWN, file)
        if not isinstance(content, dict):
            raise Invalid(f"{file}: [{section}] must be a table.", file=str(file))
        for key, value in content.items():
            if key not in _KNOWN[section]:
                raise _unknown(f"key {section}.{key}", key, _KNOWN[section], file)
            values[f"{section}.{key}"] = _checked(f"{section}.{key}", value, file)
    for name in values.get("spark.conf", {}):
        if _SECRET.search(name):
            raise Invalid(
                f"{file}: {name} in [spark] conf is a secret, and every user can read this file. "
                "Set S3 credentials by the AWS_* variables, others in Spark's own "
                "spark-defaults.conf.",
                file=str(file),
                setting=name,
            )
    return values


def _checked(name: str, value: Any, file: Path) -> Any:
    if name in _TABLES:
        right, wanted = isinstance(value, dict), "a table"
    elif name in _LISTS:
        right = isinstance(value, list) and all(isinstance(item, str) for item in value)
        wanted = "a list of names"
    elif name in _NUMBERS:
        right = isinstance(value, int | float) and not isinstance(value, bool)
        wanted = "a number"
    else:
        right, wanted = isinstance(value, str), "a string"
    if not right:
        raise Invalid(f"{file}: {name} must be {wanted}, not {value!r}.", file=str(file))
    return value


def _unknown(what: str, name: str, known: Any, file: Path) -> Invalid:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0)
    return Invalid(
        f"{file}: {what} is unknown. Did you mean {near[0]!r}? Known: {', '.join(known)}.",
        file=str(file),
        nearest=near[0],
    )


def _overrides(environ: Mapping[str, str]) -> dict[str, Any]:
    _reject_unknown(environ)
    values: dict[str, Any] = {}
    for section, keys in _KNOWN.items():
        for key in keys:
            text = environ.get(f"HEADGATE_{section}_{key}".upper())
            name = f"{section}.{key}"
            if text is None or name in _TABLES:
                continue
            values[name] = [p for p in text.split(",") if p] if name in _LISTS else text
    return values


def _reject_unknown(environ: Mapping[str, str]) -> None:
    """Raise for an unknown variable that looks like a known one or like one of a section."""
    settable = [f"{s}_{k}" for s, keys in _KNOWN.items() for k in keys if f"{s}.{k}" not in _TABLES]
    known = [f"HEADGATE_{name}".upper() for name in (*settable, *_VARIABLES)]
    for name in environ:
        if not name.startswith("HEADGATE_") or name in known:
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=_SIMILARITY)
        if not near and name.startswith(_SECTION_VARIABLES):
            near = difflib.get_close_matches(name, known, n=1, cutoff=0)
        if near:
            raise Invalid(
                f"the variable {name} is unknown. Did you mean {near[0]}?",
                variable=name,
                nearest=near[0],
            )


def _build(root: Path, values: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    fallback = values.get("builds.fallback")
    adopt = values.get("builds.adopt", "any")
    if adopt not in _ADOPT:
        raise Invalid(f"builds.adopt is {adopt!r}; it must be one of {', '.join(_ADOPT)}.")
    tasks_root = values.get("tasks.root")
    if "spark.master" in values and "spark.remote" in values:
        raise Invalid(
            "spark.master and spark.remote are both set: Spark either is started here for a master "
            "or is a Connect server elsewhere. Remove one of them."
        )
    if "spark.endpoint" in values:
        split_endpoint(values["spark.endpoint"])
    return Settings(
        root=root,
        catalog=_catalog_url(root, values.get("store.catalog", ".headgate/catalog.db")),
        warehouse=_warehouse_url(root, values.get("store.warehouse", ".headgate/warehouse")),
        retain_seconds=parse_duration_seconds(
            values.get("store.retain", "30d"), what="store.retain"
        ),
        allowed_locations=tuple(
            _warehouse_url(root, one) for one in values.get("store.allowed_locations", ())
        ),
        access_delegation=_delegation(values),
        sts_endpoint=values.get("store.sts_endpoint"),
        sts_role_arn=values.get("store.sts_role_arn"),
        spark=SparkSettings(
            master=values.get("spark.master", "local[*]"),
            remote=values.get("spark.remote"),
            conf={k: str(v) for k, v in values.get("spark.conf", {}).items()},
            endpoint=values.get("spark.endpoint"),
        ),
        builds=BuildSettings(
            branch=values.get("builds.branch", "master"),
            fallback=tuple(fallback) if fallback is not None else None,
            adopt=adopt,
        ),
        server=_server(values),
        tasks_root=(root / tasks_root) if tasks_root else None,
        conductor_url=values.get("conductor.url"),
        lakefs_endpoint=values.get("lakefs.endpoint"),
        lineage=_lineage(environ),
        server_url=environ.get("HEADGATE_URL"),
        token=environ.get("HEADGATE_TOKEN"),
        actor=default_actor(environ),
        cache=default_cache(environ),
        environ=environ,
    )


def _delegation(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the ways of access that the store offers; raise if it cannot offer one."""
    modes = tuple(dict.fromkeys(values.get("store.access_delegation", ())))
    if unknown := [mode for mode in modes if mode not in _DELEGATION]:
        raise Invalid(
            f"store.access_delegation has {unknown[0]!r}; it may have {' and '.join(_DELEGATION)}."
        )
    warehouse = values.get("store.warehouse", ".headgate/warehouse")
    if modes and not warehouse.startswith("s3://"):
        raise Invalid(
            f"store.access_delegation is set, and the warehouse {warehouse!r} is not in S3: access "
            "to a directory cannot be delegated. Set store.warehouse to s3://bucket/prefix, or "
            "remove the setting: clients then open the files themselves."
        )
    role = values.get("store.sts_role_arn", "")
    if VENDED_CREDENTIALS in modes and not re.fullmatch(r"arn:[a-z-]+:[^\s]+", role):
        raise Invalid(
            f"store.sts_role_arn is {role!r}; {VENDED_CREDENTIALS} need the role whose access "
            "clients get parts of, as arn:aws:iam::<account>:role/<name>. Set it, or offer "
            f"{REMOTE_SIGNING} only."
        )
    return modes


def _server(values: Mapping[str, Any]) -> ServerSettings:
    """Return the limits of a server; each is a number above 0, and counts are whole numbers."""
    found: dict[str, Any] = {}
    for kind in fields(ServerSettings):
        name = f"server.{kind.name}"
        if name not in values:
            continue
        is_count = isinstance(kind.default, int) and not kind.name.endswith("_seconds")
        try:
            number = float(values[name])
        except (ValueError, OverflowError):
            number = 0
        if not 0 < number < math.inf or (is_count and not number.is_integer()):
            wanted = "a whole number" if is_count else "a number of seconds"
            raise Invalid(f"{name} is {values[name]!r}; it must be {wanted} above 0.")
        found[kind.name] = int(number) if is_count else number
    return ServerSettings(**found)


def _lineage(environ: Mapping[str, str]) -> LineageSettings | None:
    url = environ.get("OPENLINEAGE_URL")
    if not url or environ.get("OPENLINEAGE_DISABLED", "").lower() == "true":
        return None
    found = LineageSettings(url=url, api_key=environ.get("OPENLINEAGE_API_KEY"))
    return replace(
        found,
        endpoint=environ.get("OPENLINEAGE_ENDPOINT") or found.endpoint,
        namespace=environ.get("OPENLINEAGE_NAMESPACE") or found.namespace,
    )


def _catalog_url(root: Path, value: str) -> str:
    if "://" in value and not value.startswith("sqlite:"):
        return value
    path = Path(value.removeprefix("sqlite:///").removeprefix("sqlite:"))
    return f"sqlite:///{root / path}"


def _warehouse_url(root: Path, value: str) -> str:
    if value.startswith("file://"):
        return str(Path(value.removeprefix("file://")))
    return value if "://" in value else str(root / value)


def default_cache(environ: Mapping[str, str]) -> Path:
    if environ.get("HEADGATE_CACHE"):
        return Path(environ["HEADGATE_CACHE"])
    base = environ.get("XDG_CACHE_HOME") or str(
        Path(environ.get("HOME", "~")).expanduser() / ".cache"
    )
    return Path(base) / "headgate"
