"""Send one request: the function behind a `url` job, run by the job host as any python job.

Exit codes, for `retry_exit_codes`: 0 the status is expected; 1 no answer, or one that broke off;
2 to 5 another status, by its first digit; 126 a file is missing or wrong, and nothing was sent.
Printed: the status line, and the body up to MAX_BODY. Not promised: that a request without an
answer did not arrive; hence the Idempotency-Key. Proxies are not used.
"""

from __future__ import annotations

import signal
import ssl
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import certifi
import httpcore  # noqa: F401 - httpx loads it late: here, once, before the host forks
import httpx

from cron_leader.jobs import Tick
from cron_leader.runners.failure import Failure

MAX_BODY = 1 << 20
"""Bytes of an answer that are read; then the connection is closed, and the status decides."""
MAX_REDIRECTS = 5

_CONNECT_S = 10.0  # also for the TLS handshake; the rest may take as long as the job's timeout
_NO_ANSWER, _NOTHING_SENT = 1, 126
_DEFAULTS = {"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "cron-leader"}
"""Not compressed: 64 kB of that may become 64 MB."""
_USUAL = ssl.create_default_context(cafile=certifi.where())
"""The usual authorities, read once for all forks: it takes 40 ms."""


def send(asked: Mapping[str, Any], tick: Tick) -> None:
    """Send it and print the answer; asked is what `url.request_of` made. Raises Failure."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a read that hangs is to end with the timeout
    with httpx.Client(
        verify=_trust(asked),
        trust_env=False,
        headers=_DEFAULTS,
        timeout=httpx.Timeout(None, connect=_CONNECT_S),
    ) as client:
        try:
            request = _first(client, asked)
            response = _answer(client, request, follow=asked["follow_redirects"])
            _show(response)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise Failure(_NO_ANSWER, f"no answer: {error or type(error).__name__}") from None
    _judge(response, asked["expected_status"])


def _trust(asked: Mapping[str, Any]) -> ssl.SSLContext:
    """Whom to believe, and who we are."""
    if not asked["ca"] and not asked["cert"]:
        return _USUAL
    try:
        context = ssl.create_default_context(cafile=asked["ca"] or certifi.where())
        if asked["cert"]:
            context.load_cert_chain(asked["cert"], asked["key"])
    except OSError as error:  # an SSLError is one
        raise Failure(_NOTHING_SENT, f"ca, cert or key: {error}") from None
    return context


def _first(client: httpx.Client, asked: Mapping[str, Any]) -> httpx.Request:
    """The request as the job has it."""
    headers = [
        *asked["headers"],
        *((name, _secret(name, at)) for name, at in asked["header_files"]),
    ]
    body = asked["body"]
    request = client.build_request(
        asked["method"],
        asked["url"],
        headers=headers,
        content=None if body is None else body.encode(),
    )
    if body is not None:
        request.headers.setdefault("Content-Type", "application/json")
    return request


def _secret(name: str, file: str) -> str:
    """A header's value: the first line of a file. It is in no message."""
    try:
        text = Path(file).read_text(encoding="utf-8").partition("\n")[0].strip()
    except OSError as error:
        raise Failure(_NOTHING_SENT, f"headers.{name}: {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        text = ""
    if not text or not (text.isascii() and text.isprintable()):
        raise Failure(
            _NOTHING_SENT, f"headers.{name}: {file}: its first line must be printable ASCII"
        )
    return text


def _answer(client: httpx.Client, request: httpx.Request, *, follow: bool) -> httpx.Response:
    """The answer, its body not read yet; with `follow`, that of the last redirect."""
    for _ in range(MAX_REDIRECTS):
        response = client.send(request, stream=True)
        following = _redirected(client, request, response) if follow else None
        if following is None:
            return response
        response.close()
        request = following
    return client.send(request, stream=True)


def _redirected(
    client: httpx.Client, request: httpx.Request, response: httpx.Response
) -> httpx.Request | None:
    """The request that a redirect asks for; None: there is none, or not one to be followed.

    Another origin is given no header of the job's and no body, for they were meant for this one;
    and from https there is no way to http.
    """
    if not response.has_redirect_location:
        return None
    url = request.url.join(response.headers["Location"])
    method, body = request.method, request.content
    if response.status_code == 303 or (response.status_code in (301, 302) and method == "POST"):
        method, body = "HEAD" if method == "HEAD" else "GET", b""
    if url.scheme not in ("http", "https") or (request.url.scheme, url.scheme) == ("https", "http"):
        return None
    if _origin(url) != _origin(request.url):
        return client.build_request(method, url) if not body else None
    return client.build_request(method, url, headers=_kept(request, body), content=body or None)


def _kept(request: httpx.Request, body: bytes) -> list[tuple[str, str]]:
    """A request's headers for the next one, but for those that are made anew."""
    dropped = {"host", "content-length", "cookie"} | (set() if body else {"content-type"})
    return [(name, text) for name, text in request.headers.items() if name not in dropped]


def _origin(url: httpx.URL) -> tuple[str, str, int]:
    port = url.port or (443 if url.scheme == "https" else 80)
    return url.scheme, url.host, port


def _show(response: httpx.Response) -> None:
    """Print the status line and what comes of the body, as it comes."""
    out = sys.stdout.buffer
    out.write(f"{_line(response)}\n".encode())
    room = MAX_BODY
    for part in response.iter_raw():
        out.write(part[:room])
        out.flush()
        room -= len(part)
        if room <= 0:
            break
    out.flush()
    response.close()


def _line(response: httpx.Response) -> str:
    return f"{response.http_version} {response.status_code} {response.reason_phrase}".strip()


def _judge(response: httpx.Response, expected: Sequence[int]) -> None:
    """Raises Failure unless the status is an expected one; empty: any 2xx."""
    status = response.status_code
    if status in expected or (not expected and response.is_success):
        return
    to = f" (Location: {_place(response)})" if response.has_redirect_location else ""
    raise Failure(status // 100, f"{_line(response)}{to}")


def _place(response: httpx.Response) -> str:
    """Without the query, which may hold a secret."""
    return response.headers["Location"].partition("?")[0]
