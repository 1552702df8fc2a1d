"""The keys of a job that sends a request: `url`, and those that go with it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cron_leader.config.files import readable
from cron_leader.core.model import HttpSpec

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
_WITHOUT_BODY = ("GET", "HEAD")
_GO_WITH_URL = ("method", "headers", "body", "expected_status", "follow_redirects")
_FILES = ("ca", "cert", "key")

_URL = re.compile(r"https?://[!-~]+", re.IGNORECASE)
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.6.2: a token
_VALUE = re.compile(r"[\t -~]*")
_OURS = frozenset(
    {"idempotency-key", "host", "content-length", "transfer-encoding", "connection"}
    | {"accept-encoding"}
)

Report = Callable[[str, str], None]
Headers = tuple[tuple[str, str], ...]


def headers(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """The table as it is. Raises ValueError, which holds no value: they may be secrets."""
    seen: set[str] = set()
    for name, given in table.items():
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a header")
        if name.lower() in _OURS or name.lower().startswith("cron-leader-"):
            raise ValueError(f"{name} is set by cron-leader; leave it out")
        if name.lower() in seen:
            raise ValueError(f"{name} is there twice; keep one")
        seen.add(name.lower())
        match given:
            case str() if not _VALUE.fullmatch(given):
                raise ValueError(f"{name} must be printable ASCII, on one line")
            case str():
                pass
            case {"file": str(path), **rest} if path.strip() and not rest:
                pass
            case _:
                raise ValueError(f'{name} must be text in quotes, or {{ file = "path" }}')
    return table


def headers_of(values: Mapping[str, Any], base: Path, report: Report) -> tuple[Headers, Headers]:
    """By name: their texts, and the files of the others."""
    given = values.get("headers", {})
    files = {name: value["file"] for name, value in given.items() if not isinstance(value, str)}
    texts = tuple((name, text) for name, text in given.items() if name not in files)
    at = partial(report, "headers")
    return texts, tuple((name, readable(file, base, at)) for name, file in files.items())


def check(values: Mapping[str, Any], report: Report) -> None:
    """What stands in a job that has no url, but goes with one."""
    if "url" not in values:
        for key in (key for key in (*_GO_WITH_URL, *_FILES) if key in values):
            report(key, "goes with url; leave it out")


def read(values: Mapping[str, Any], base: Path, report: Report) -> HttpSpec | None:
    """The request of a job with a url; None if its url is wrong. base: of relative paths."""
    url = values["url"]
    if rule := _wrong(url):
        report("url", rule)
        return None
    body = values.get("body")
    method = values.get("method", "GET" if body is None else "POST")
    if body is not None and method in _WITHOUT_BODY:
        report("body", f"a {method} has none; leave it out, or write another method")
    _check_tls(values, report)
    texts, files = headers_of(values, base, report)
    return HttpSpec(
        url=url,
        method=method,
        headers=texts,
        header_files=files,
        body=body,
        expected_status=tuple(values.get("expected_status", ())),
        follow_redirects=values.get("follow_redirects", False),
        **{
            key: readable(values[key], base, partial(report, key))
            for key in _FILES
            if key in values
        },
    )


def _wrong(url: str) -> str:
    """The rule that a URL breaks; empty if it is right."""
    try:
        parts = urlsplit(url)
        whole = bool(parts.hostname) and parts.port != 0
    except ValueError:
        whole = False
    if not _URL.fullmatch(url) or not whole:
        return "must be an http:// or https:// URL; write other than ASCII with %"
    if "{" in url or "}" in url:
        return "must hold no braces: nothing is filled in there, only in body; write %7B and %7D"
    if "@" in parts.netloc:
        return "must hold no password: give an Authorization in headers, from a file or ${NAME}"
    return ""


def _check_tls(values: Mapping[str, Any], report: Report) -> None:
    for key in (key for key in _FILES if key in values):
        if not values["url"].lower().startswith("https:"):
            report(key, "goes with an https:// URL")
    for one, other in (("cert", "key"), ("key", "cert")):
        if one in values and other not in values:
            report(one, f"needs {other} as well")
