"""What a run of a `url` job is to send, composed by the daemon; `request` sends it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from urllib.parse import quote

from cron_leader.core.model import HttpSpec, Run

SEND = "cron_leader.runners.request:send"
"""The function that the job host runs."""

_PREFIX = "CRON_LEADER_"
_WORD = re.compile(r"\{([a-z_]+)\}")
_PLAIN = "".join(map(chr, range(0x21, 0x7F))).replace("%", "")
"""What stands in a header as it is; the rest is percent-encoded UTF-8."""


def request_of(run: Run, spec: HttpSpec, environ: Mapping[str, str]) -> Mapping[str, object]:
    """The request, whole but for the headers that stand in files, which are read when it is sent.

    environ: what the run is told as variables; the same is told in `Cron-Leader-*` headers, and
    may stand in the body as {job}, {scheduled_for} and so on.
    """
    told = {
        name.removeprefix(_PREFIX): text
        for name, text in environ.items()
        if name.startswith(_PREFIX)
    }
    ours = {f"Cron-Leader-{name.replace('_', '-').title()}": text for name, text in told.items()}
    ours["Idempotency-Key"] = _idempotency_key(run, told["SCHEDULED_FOR"])
    return {
        "url": spec.url,
        "method": spec.method,
        "headers": [*spec.headers, *((name, quote(text, _PLAIN)) for name, text in ours.items())],
        "header_files": spec.header_files,
        "body": None if spec.body is None else _filled(spec.body, told),
        "expected_status": spec.expected_status,
        "follow_redirects": spec.follow_redirects,
        "ca": spec.ca,
        "cert": spec.cert,
        "key": spec.key,
    }


def _idempotency_key(run: Run, scheduled_for: str) -> str:
    """The same for all attempts of a slot, by whichever leader."""
    parts = (run.job.name, scheduled_for, run.slot.command_id)
    return "/".join(part for part in parts if part)


def _filled(body: str, told: Mapping[str, str]) -> str:
    """The body with its known words replaced, escaped as within a JSON string; other braces stay:
    JSON has many."""

    def text(match: re.Match[str]) -> str:
        known = told.get(match[1].upper())
        return match[0] if known is None else json.dumps(known, ensure_ascii=False)[1:-1]

    return _WORD.sub(text, body)
