"""A real HTTP server for url jobs: what it was asked, and answers good and bad."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any


class Answers(BaseHTTPRequestHandler):
    """/status/N answers N, /first/N a slot's first attempt with N and others with 200, /to?URL
    redirects there (/307?URL with 307); the rest below."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        seen = {"method": self.command, "path": self.path, "body": body.decode()}
        server: Any = self.server
        server.seen.append(seen | {"headers": {k.lower(): v for k, v in self.headers.items()}})
        path, _, query = self.path.partition("?")
        match path.split("/")[1:]:
            case ["status", code]:
                self._answer(int(code), b"as asked\n")
            case ["first", code]:
                first = self.headers["Cron-Leader-Attempt"] == "1"
                self._answer(int(code) if first else 200, b"as asked\n")
            case [("to" | "303" | "307") as kind]:
                self._answer(302 if kind == "to" else int(kind), b"", Location=query)
            case ["loop"]:
                self._answer(302, b"", Location="/loop?secret")
            case ["hang"]:
                self.rfile.read(1)
            case ["break"]:
                self._begin(200, {"Content-Length": "100"})
                self.wfile.write(b"cut")
                self.close_connection = True
            case ["endless"]:
                self._endless()
            case ["drip"]:
                self._endless(b"x", pause_s=0.02)
            case ["slow"]:
                Event().wait(0.2)
                self._answer(200, b"at last\n")

    do_POST = do_PUT = do_HEAD = do_GET

    def _answer(self, code: int, body: bytes, **headers: str) -> None:
        self._begin(code, headers | {"Content-Length": str(len(body))})
        if self.command != "HEAD":
            self.wfile.write(body)

    def _begin(self, code: int, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, text in headers.items():
            self.send_header(name, text)
        self.end_headers()

    def _endless(self, part: bytes = b"x" * 65536, pause_s: float = 0) -> None:
        self._begin(200, {"Connection": "close"})
        try:
            while True:
                self.wfile.write(part)
                Event().wait(pause_s)
        except OSError:
            self.close_connection = True

    def log_message(self, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.seen: list[dict[str, Any]] = []
        self.scheme = "https" if context else "http"
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_side=True)

    def url(self, path: str) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}{path}"

    def handle_error(self, *args: object) -> None:
        """A client that went away, or does not trust us, is what these tests are about."""


@contextmanager
def serving(context: ssl.SSLContext | None = None) -> Iterator[Server]:
    with Server(context) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
