"""The application behind ``bench web``: who may ask it, and how errors become pages."""

import hmac
import os
import socket
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from flask import Blueprint, Flask, Response, abort, current_app, render_template, request
from jinja2 import StrictUndefined
from werkzeug.exceptions import HTTPException, NotFound
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from suite.errors import BenchError, of_system
from suite.untrusted.terminal import clean
from worker.serving import http_server
from worker.serving.http_server import BoundedServer
from worker.serving.service import refusal

HEADERS = {
    # Only files of this server, no script or style inside a page, and images that a page itself holds.
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src data:; connect-src "
    "'self'; frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with "no-referrer" browsers send the forms of this site with the Origin "null"
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
MOST_REQUEST_BYTES = 64 << 10


@dataclass(frozen=True)
class WebSettings:
    """The choices of ``bench web``, and the token that opens its pages."""

    results: Path
    token: str
    allow_files: bool = False
    services: Mapping[str, str] = field(default_factory=dict)
    """The addresses of services by the places where they run."""

    @property
    def path(self) -> str:
        """The path of the pages. Cookies know no ports: one for "/" would be sent to all servers of this host."""
        return f"/{self.secret('path')}"

    def secret(self, purpose: str) -> str:
        """Return a value that nobody can derive without the token."""
        mac = hmac.new(self.token.encode(), purpose.encode(), "sha256")
        return mac.hexdigest()


def create_app(web: WebSettings, pages: Iterable[Blueprint]) -> Flask:
    app = Flask(__name__)
    app.jinja_options = {
        "autoescape": True,
        "undefined": StrictUndefined,
        "trim_blocks": True,
        "lstrip_blocks": True,
    }
    # Marks that turn the direction of text would show a name as another one.
    app.jinja_options["finalize"] = lambda value: clean(value) if type(value) is str else value
    app.extensions["web"] = web
    app.config.update(MAX_CONTENT_LENGTH=MOST_REQUEST_BYTES, MAX_FORM_MEMORY_SIZE=MOST_REQUEST_BYTES)
    app.before_request(admit)
    app.after_request(protected)
    app.context_processor(lambda: {"web": web, "admitted": admitted(), "root": os.geteuid() == 0})
    app.register_error_handler(Exception, error_page)
    for page in pages:
        app.register_blueprint(page)
    return app


def serve(app: Flask, web: WebSettings, listener: socket.socket) -> None:
    """Serve the pages below their path until Ctrl-C. Requests that are half sent do not shut out others."""
    mounted = DispatcherMiddleware(NotFound("open the address that bench web has printed"), {web.path: app})
    BoundedServer(
        mounted, listener, threads=8, most_bytes=MOST_REQUEST_BYTES, idle_s=http_server.REQUEST_WITHIN_S
    ).run()


def settings() -> WebSettings:
    web: WebSettings = current_app.extensions["web"]
    return web


def admitted() -> bool:
    """Return whether the request comes from a browser that was given the token."""
    cookie = request.cookies.get(settings().secret("name"))
    return _same(cookie, settings().secret("cookie"))


def _same(value: str | None, expected: str) -> bool:
    return hmac.compare_digest((value or "").encode(), expected.encode())


def admit() -> Response | None:
    """Refuse a request that does not come from this server's own pages; exchange the token for a cookie."""
    web = settings()
    origin = request.headers.get("Origin")
    why = refusal(request.headers.get("Host", ""), origin, local=True)
    if why is None and origin is None and request.method == "POST":
        why = "the form names no site that sent it; nothing was done"
    if why:
        abort(403, why)
    if request.path == "/" and _same(request.args.get("token"), web.token):
        # A page and no redirect: a browser that comes from elsewhere sends strict cookies with the next page alone.
        welcome = Response(render_template("welcome.html.j2"))
        path = f"{request.script_root}/"
        welcome.set_cookie(web.secret("name"), web.secret("cookie"), httponly=True, samesite="Strict", path=path)
        return welcome
    if not admitted():
        abort(403, "open the address that bench web printed when it was started: it holds the token for these pages")
    if request.method == "POST" and not _same(request.form.get("form_token"), web.secret("form")):
        abort(403, "the form is not of this server, or of one that has ended: load its page again")
    return None


def protected(response: Response) -> Response:
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    return response


def error_page(error: Exception) -> tuple[str, int]:
    """Return a page with what is wrong and what to do; the reason of a fault goes to the output of bench web alone."""
    status = 500
    message = f"{request.path} cannot be shown: bench web has printed why"
    remedy = None
    title = "Page not found" if isinstance(error, NotFound) else "Could not be done"
    refusal = of_system(error) if isinstance(error, OSError) else error
    if isinstance(refusal, HTTPException):
        status = refusal.code or 500
        message = refusal.description or refusal.name
    elif isinstance(refusal, BenchError):
        status = 400
        message = refusal.message
        remedy = refusal.remedy
    else:
        traceback.print_exception(error)
    return render_template("error.html.j2", title=title, message=message, remedy=remedy), status
