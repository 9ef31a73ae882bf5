"""Sessions of the pages: sign-in with a token, sign-out, and the signed cookie in between.

The cookie names a token and is valid only as long as that token is.
"""

import errno
import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Collection
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from headgate.errors import HeadgateError, TokenRefused, storage_error
from headgate.model.access import Grant
from headgate.server.authorization import Authority
from headgate.server.connections import recognize
from headgate.server.web import markup
from headgate.server.web.markup import command, tag
from headgate.server.web.page import HEADERS, document
from headgate.storage.local import make_private_directory

COOKIE = "headgate_session"
LIFETIME_SECONDS = 12 * 3600
_KEY_BYTES = 32


class Sessions:
    """Signs and reads session cookies; no state is stored, so a restart ends no session."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def issue(self, token_id: str, *, now: float | None = None) -> str:
        """Return a cookie for the holder of a token, valid for `LIFETIME_SECONDS`."""
        until = int((time.time() if now is None else now) + LIFETIME_SECONDS)
        return f"{token_id}.{until}.{self._sign(token_id, until)}"

    def read(self, cookie: str | None, *, now: float | None = None) -> str | None:
        """Return the token's id; None if the cookie has a wrong signature or has expired."""
        token_id, _, rest = (cookie or "").partition(".")
        until, _, signature = rest.partition(".")
        if not until.isdecimal() or len(until) > 12 or not signature.isascii():
            return None
        if not hmac.compare_digest(signature, self._sign(token_id, int(until))):
            return None
        return token_id if int(until) > (time.time() if now is None else now) else None

    def _sign(self, token_id: str, until: int) -> str:
        text = f"pages\0{token_id}\0{until}".encode()
        return hmac.new(self._key, text, hashlib.sha256).hexdigest()


def load_key(path: Path) -> bytes:
    """Return the server's signing key; create it at the first start, readable by its user only.

    On a disk that can only be read, a new key is kept in memory: sessions end with the server.
    """
    made = secrets.token_bytes(_KEY_BYTES)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        if path.exists():
            return path.read_bytes()
        make_private_directory(path.parent)
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(made)
            file.flush()
            os.fsync(handle)
    except OSError as error:
        if error.errno == errno.EROFS:
            return made
        raise storage_error(error, path) from error
    try:
        # A link is created atomically: of two servers that start at once, one key remains.
        os.link(temporary, path)
    except FileExistsError:
        made = path.read_bytes()
    finally:
        temporary.unlink()
    return made


class SignIn:
    """Signs visitors in and out; every visit checks the token against the catalog again."""

    def __init__(
        self, authority: Authority, sessions: Sessions, public_url: str | None = None
    ) -> None:
        self._authority = authority
        self._sessions = sessions
        self._public_url = public_url

    def is_genuine(self, cookie: str | None) -> bool:
        """Return whether this server signed the cookie, and it has not expired."""
        return self._sessions.read(cookie) is not None

    def find_grant(self, cookie: str | None) -> Grant | None:
        """Return the present grant of the cookie's token; None if it is missing or revoked."""
        token_id = self._sessions.read(cookie)
        return None if token_id is None else self._authority.find_grant(token_id)

    async def show_form(self, request: Request) -> Response:
        return self._form(markup.local_path(request.query_params.get("next")))

    async def sign_in(self, request: Request) -> Response:
        if not self._is_own(request):
            return self._form(markup.DATASETS, "This form was sent from another site.", 403)
        # A few KB: the server limits bodies.
        form = parse_qs((await request.body()).decode(errors="replace"))
        secret = form.get("token", [""])[0].strip()
        wanted = markup.local_path(form.get("next", [None])[0])
        try:
            token_id = await run_in_threadpool(self._authority.find_token_id, secret)
        except TokenRefused as refused:
            return await self._wrong(request, wanted, str(refused))
        except HeadgateError as error:
            return self._form(wanted, str(error.without_addresses()), 503)
        if token_id is None:
            return await self._wrong(request, wanted, "This token is not known here.")
        response = RedirectResponse(wanted, status_code=303)
        response.set_cookie(
            COOKIE,
            self._sessions.issue(token_id),
            max_age=LIFETIME_SECONDS,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return response

    async def _wrong(self, request: Request, wanted: str, problem: str) -> Response:
        if not await self._authority.guesses.slow_down(request.client):
            return self._form(wanted, problem, 401)
        many = "Too many wrong tokens came from your address in the last minute."
        return self._form(wanted, f"{problem} {many}", 429)

    async def sign_out(self, request: Request) -> Response:
        response = RedirectResponse(markup.SIGN_IN, status_code=303)
        if self._is_own(request):
            response.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return response

    def redirect(self, request: Request) -> Response:
        """Redirect to the sign-in form, which leads back to this page."""
        if request.headers.get("sec-fetch-site") == "cross-site":
            # Browsers omit a SameSite=Strict cookie if a link of another site led here: reload the
            # page, so that the request comes from this site.
            again = tag("meta", http_equiv="refresh", content="0")
            return HTMLResponse(f"<!doctype html><title>Headgate</title>{again}")
        here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        form = markup.with_query(markup.SIGN_IN, next=here if here != "/" else None)
        return RedirectResponse(form, status_code=303)

    def _is_own(self, request: Request) -> bool:
        """Return whether the request comes from this site, by headers that pages cannot forge."""
        site = request.headers.get("sec-fetch-site")
        if site is not None:
            return site in {"same-origin", "none"}
        origin = request.headers.get("origin")
        host = request.headers.get("host")
        return origin is None or is_own_origin(origin, host, self._public_url)

    def _form(self, wanted: str, problem: str | None = None, status: int = 200) -> HTMLResponse:
        text = document("Sign in", _sign_in(wanted, problem))
        return HTMLResponse(text, status_code=status, headers=HEADERS)


class SignedIn:
    """ASGI middleware of the pages: strangers reach neither NiceGUI nor its sockets.

    NiceGUI keeps a page in memory for a minute, and a socket for as long as it is open.
    """

    def __init__(self, app: ASGIApp, sign_in: SignIn, paths: Collection[str]) -> None:
        self._app = app
        self._sign_in = sign_in
        self._first_segments = {_first_segment(path) for path in paths}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_open = scope["type"] == "lifespan" or (
            _first_segment(scope["path"]) not in self._first_segments
        )
        if is_open:
            await self._app(scope, receive, send)
            return
        cookie = HTTPConnection(scope).cookies.get(COOKIE)
        is_good = self._sign_in.is_genuine(cookie) and (
            await run_in_threadpool(self._sign_in.find_grant, cookie) is not None
        )
        if is_good:
            recognize(scope)
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close"})
        elif scope["method"] == "GET":
            await self._sign_in.redirect(Request(scope))(scope, receive, send)
        else:
            await Response(status_code=401)(scope, receive, send)


def _first_segment(path: str) -> str:
    return path.strip("/").partition("/")[0]


def is_own_origin(origin: str, host: str | None, public_url: str | None) -> bool:
    """Return whether an `Origin` header is of this site: its host, or its declared public URL."""
    own = {host, urlsplit(public_url).netloc if public_url is not None else None}
    return urlsplit(origin).netloc in own


_SIGN_IN = Markup(
    """<form method="post" action="{action}" class="sign-in">
<div class="brand"><span class="gate" aria-hidden="true"></span>Headgate</div>
<h1 id="content">Sign in</h1>
<label for="token">Token</label>
<input type="password" name="token" required autofocus autocomplete="current-password" id="token"
 placeholder="hg_…"{described}>
{problem}<input type="hidden" name="next" value="{wanted}">
<button type="submit" class="button primary">Sign in</button>
<p class="hint">At its first start, the server writes an admin token to a file. For another one:</p>
{command}</form>"""
)
_PROBLEM = Markup('<p class="problem" id="problem" role="alert">{}</p>\n')


def _sign_in(wanted: str, problem: str | None) -> Markup:
    return _SIGN_IN.format(
        action=markup.SIGN_IN,
        described=Markup(' aria-describedby="problem"') if problem else "",
        problem=_PROBLEM.format(problem) if problem else "",
        wanted=wanted,
        command=command("headgate token create --actor ana --role reader"),
    )
