"""Who may read what is not for everybody.

On loopback no token is asked for: whoever can reach the port is on this machine. But a page in a
browser there can be made to ask for it under a name of its own (DNS rebinding), and a proxy may
hand on what others ask: both give another Host than a loopback one, and then the token counts.
"""

from __future__ import annotations

import hmac

from cron_leader.config import HttpConfig, is_loopback


def refusal(http: HttpConfig, *, host: str, authorization: str) -> str | None:
    """Why the request is refused, in words; None: it may pass.

    host, authorization: the request's headers, "" if absent.
    """
    if http.loopback and is_loopback(_name(host)):
        return None
    if http.token is None:
        return "others can reach this port: it needs a token, so set [http] token_file"
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() != "bearer" or not _same(given.strip(), http.token):
        return "send the token of [http] token_file: Authorization: Bearer TOKEN"
    return None


def _same(given: str, token: str) -> bool:
    """In a time that says nothing of how much is right."""
    return hmac.compare_digest(given.encode(errors="replace"), token.encode())


def _name(host: str) -> str:
    """Of a Host header: without port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
