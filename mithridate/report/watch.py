"""The report as a live page: served on this machine only, and refreshed when the store changes."""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from mithridate.errors import UserError
from mithridate.experiments.store import Store
from mithridate.files import reason, shown
from mithridate.report.html import fingerprint, render, render_problem

HOSTS = ("127.0.0.1", "localhost", "[::1]")


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that has gone is nothing to talk about."""
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError | TimeoutError):
            print(f"error: {type(error).__name__}: {shown(error)}", file=sys.stderr)


def server(store: Store, port: int = 0) -> ThreadingHTTPServer:
    """A server on 127.0.0.1 for the page (/) and its version (/version)."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 30

        def do_GET(self) -> None:
            # Another name would be that of a web page which has led the browser here.
            served = {f"{host}:{self.connection.getsockname()[1]}" for host in HOSTS}
            if self.headers.get("Host", "").lower() not in served:
                self.send_error(403, "this page is served to this machine only")
            elif self.path == "/":
                self._answer(_page(store), "text/html; charset=utf-8")
            elif self.path == "/version":
                self._answer(_version(store), "text/plain")
            else:
                self.send_error(404)

        def _answer(self, text: str, kind: str) -> None:
            data = text.encode()
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            pass

    try:
        return _Server(("127.0.0.1", port), Handler)
    except OSError as error:
        raise UserError(
            f"cannot serve on port {port}: {reason(error)}; --port 0 takes a free one"
        ) from None


def _page(store: Store) -> str:
    """The report, or why there is none: a store may be damaged, or vanish, at any time."""
    seen = _version(store)
    try:
        found = Store.find(store.root)
        if found is None:
            raise UserError(f"there is no store in {shown(store.root)} any more")
        return render(found, live=True)
    except UserError as error:
        return render_problem(str(error), seen)


def _version(store: Store) -> str:
    try:
        return fingerprint(store)
    except UserError:
        return "unreadable"
