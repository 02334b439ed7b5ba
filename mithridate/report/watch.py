"""The report as a live page: served on this machine only, and refreshed when the store changes."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from mithridate.errors import UserError
from mithridate.experiments.store import Store
from mithridate.report.html import fingerprint, render


def server(store: Store, port: int = 0) -> ThreadingHTTPServer:
    """A server on 127.0.0.1 for the page (/) and its version (/version)."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/":
                self._answer(render(Store(store.root), live=True), "text/html; charset=utf-8")
            elif self.path == "/version":
                self._answer(fingerprint(store), "text/plain")
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
        return ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise UserError(f"cannot serve on port {port}: {error.strerror}") from None
