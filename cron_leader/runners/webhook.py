"""POST one text to one URL: a process of its own, so that no name server, no slow peer and no
hanging TLS is waited for by the daemon. Standard library only.

stdin: {"url", "headers", "header_files", "body", "timeout_s"}, both kinds of headers as pairs; of a
file the first line is the value. Exit 0: the answer was 2xx; else 1, with one line on stderr that
holds neither the URL's path nor a header's value: they may be secrets.
"""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any


class _Stay(urllib.request.HTTPRedirectHandler):
    """A redirect would turn the POST into a GET, perhaps to another host: it is a failure."""

    def redirect_request(self, *args: object, **kwargs: object) -> None:
        return None


def _headers(asked: dict[str, Any]) -> dict[str, str]:
    """Raises OSError or ValueError, of a file that is not to be used."""
    headers = {"Content-Type": "application/json", "User-Agent": "cron-leader"}
    read = ((name, _first_line(name, file)) for name, file in asked["header_files"])
    for name, text in (*asked["headers"], *read):
        headers[name.title()] = text
    return headers


def _first_line(name: str, file: str) -> str:
    try:
        with Path(file).open(encoding="utf-8", errors="replace") as stream:
            text = stream.readline().strip()
    except OSError as error:
        raise OSError(f"headers.{name}: {file}: {error.strerror}") from None
    if not text or not (text.isascii() and text.isprintable()):
        raise ValueError(f"headers.{name}: {file}: its first line must be printable ASCII")
    return text


def main() -> int:
    asked = json.load(sys.stdin)
    try:
        headers = _headers(asked)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    request = urllib.request.Request(asked["url"], data=asked["body"].encode(), headers=headers)
    try:
        with urllib.request.build_opener(_Stay).open(request, timeout=asked["timeout_s"]):
            return 0
    except urllib.error.HTTPError as error:
        print(f"HTTP {error.code}", file=sys.stderr)  # noqa: T201
    except (OSError, ValueError) as error:
        print(getattr(error, "reason", None) or type(error).__name__, file=sys.stderr)  # noqa: T201
    return 1


if __name__ == "__main__":
    sys.exit(main())
