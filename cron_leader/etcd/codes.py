"""What a gRPC error of etcd means: applied, not applied or unknown; and what a person can do.

The code alone does not tell: etcd uses one code for several things, and the connection's own errors
all come as UNAVAILABLE. Foreign exceptions are mapped here and nowhere else in etcd/.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from grpc import StatusCode

from cron_leader.errors import EtcdRefused, EtcdUnavailable

if TYPE_CHECKING:
    from grpc.aio import AioRpcError


class NotSent(EtcdUnavailable):
    """No connection came about, or a member that takes none: certainly not applied."""


class Misconfigured(EtcdRefused):
    """The connection fails for a reason only a person can mend; another endpoint may still work."""


class StaleToken(EtcdRefused):
    """The auth token is not known any more: authenticate again, once."""


class NoToken(EtcdRefused):
    """It came without a token: none was asked for when we logged in, or no user is configured."""


class Denied(EtcdRefused):
    """The user is known, and lacks a right."""


class LeaseNotFound(EtcdRefused):
    """The lease is gone on the server, or was never granted."""


class LeaseExists(EtcdRefused):
    """A lease of this id was granted before, to somebody."""


class AuthDisabled(EtcdRefused):
    """The cluster asks for no credentials."""


class NoSpace(EtcdRefused):
    """etcd's quota is used up: it takes no grant and no put until a person makes room."""


class _Means(Enum):
    NOT_SENT = auto()
    UNKNOWN = auto()
    REFUSED = auto()
    FORBIDDEN = auto()
    NO_TOKEN = auto()
    DENIED = auto()
    MISCONFIGURED = auto()
    STALE_TOKEN = auto()
    LEASE_NOT_FOUND = auto()
    LEASE_EXISTS = auto()
    AUTH_DISABLED = auto()
    NO_SPACE = auto()


@dataclass(frozen=True, slots=True)
class _Rule:
    """Applies if the code is `code` and the details contain `words` (lower case)."""

    code: StatusCode
    words: str
    means: _Means
    cause: str = ""


GRANT = "grant this user's role readwrite on the prefix of the fleet"

_C, _M = StatusCode, _Means
_RULES = (
    # -- the connection; order matters, the particular before the general
    _Rule(
        _C.UNAVAILABLE,
        "certificate_verify_failed",
        _M.MISCONFIGURED,
        "its certificate is not signed by our CA; set [etcd] ca to the CA that signed it",
    ),
    _Rule(
        _C.UNAVAILABLE,
        "hostname verification",
        _M.MISCONFIGURED,
        "its certificate is for another host name; use a name in the certificate as endpoint",
    ),
    _Rule(
        _C.UNAVAILABLE,
        "bad_certificate",
        _M.MISCONFIGURED,
        "it refuses our client certificate; set [etcd] cert and key to a pair its CA signed",
    ),
    _Rule(
        _C.UNAVAILABLE,
        "certificate_required",
        _M.MISCONFIGURED,
        "it asks for a client certificate; set [etcd] cert and key",
    ),
    _Rule(
        _C.UNAVAILABLE,
        "tsi_data_corrupted",
        _M.MISCONFIGURED,
        "it closed the TLS session, as it does without a client certificate it trusts; "
        "set [etcd] cert and key",
    ),
    _Rule(
        _C.UNAVAILABLE,
        "connection refused",
        _M.NOT_SENT,
        "connection refused; is etcd running, and is [etcd] endpoints right?",
    ),
    _Rule(
        _C.UNAVAILABLE,
        "errors resolving",
        _M.NOT_SENT,
        "the host name does not resolve; check [etcd] endpoints",
    ),
    _Rule(_C.UNAVAILABLE, "failed to connect", _M.NOT_SENT, ""),
    _Rule(
        _C.UNAVAILABLE,
        "not supported for learner",
        _M.NOT_SENT,
        "it is a learner, which takes no requests; leave it out of [etcd] endpoints",
    ),
    _Rule(
        _C.UNAVAILABLE,
        "no leader",
        _M.UNKNOWN,
        "this member has no leader (quorum lost, or it is cut from its peers)",
    ),
    # -- who we are
    _Rule(_C.UNAUTHENTICATED, "", _M.STALE_TOKEN, "it does not accept our auth token"),
    _Rule(_C.INVALID_ARGUMENT, "auth store is old", _M.STALE_TOKEN, "our auth token is outdated"),
    _Rule(
        _C.INVALID_ARGUMENT,
        "user name is empty",
        _M.NO_TOKEN,
        "authentication is needed; set [etcd] user and password_file",
    ),
    _Rule(
        _C.INVALID_ARGUMENT,
        "authentication failed",
        _M.FORBIDDEN,
        "wrong user or password; check [etcd] user and password_file",
    ),
    _Rule(
        _C.PERMISSION_DENIED,
        "",
        _M.DENIED,
        "permission denied; " + GRANT,
    ),
    _Rule(_C.FAILED_PRECONDITION, "authentication is not enabled", _M.AUTH_DISABLED),
    # -- leases and room
    _Rule(_C.NOT_FOUND, "lease not found", _M.LEASE_NOT_FOUND, "the lease is gone"),
    _Rule(_C.FAILED_PRECONDITION, "lease already exists", _M.LEASE_EXISTS),
    _Rule(
        _C.RESOURCE_EXHAUSTED,
        "database space exceeded",
        _M.NO_SPACE,
        "NOSPACE: its database quota is used up, so no node can take over; compact, defragment, "
        "then disarm the alarm (etcdctl alarm disarm)",
    ),
)

_DEFINITE = frozenset(
    {
        _C.INVALID_ARGUMENT,
        _C.NOT_FOUND,
        _C.ALREADY_EXISTS,
        _C.PERMISSION_DENIED,
        _C.RESOURCE_EXHAUSTED,
        _C.FAILED_PRECONDITION,
        _C.OUT_OF_RANGE,
        _C.UNIMPLEMENTED,
    }
)
"""Codes by which etcd says no; with any other the request may have been applied (UNKNOWN is etcd's
own put timeout, for one)."""

_ERRORS: dict[_Means, type[EtcdUnavailable | EtcdRefused]] = {
    _Means.NOT_SENT: NotSent,
    _Means.UNKNOWN: EtcdUnavailable,
    _Means.REFUSED: EtcdRefused,
    _Means.STALE_TOKEN: StaleToken,
    _Means.LEASE_NOT_FOUND: LeaseNotFound,
    _Means.LEASE_EXISTS: LeaseExists,
    _Means.AUTH_DISABLED: AuthDisabled,
    _Means.NO_SPACE: NoSpace,
}


def to_error(error: AioRpcError, endpoint: str) -> EtcdUnavailable | EtcdRefused:
    """Our exception for gRPC's, its text naming endpoint, cause and, where one is known, cure."""
    return from_status(error.code(), error.details() or "", endpoint)


def from_status(code: StatusCode, details: str, endpoint: str) -> EtcdUnavailable | EtcdRefused:
    """As to_error; also for the reasons etcd gives in words, as on cancelled watches."""
    rule = _rule(code, details.lower())
    text = f"etcd {endpoint}: {rule.cause or _cause(code, details)}"
    match rule.means:
        case _Means.FORBIDDEN:
            return EtcdRefused(text, permanent=True)
        case _Means.NO_TOKEN:
            return NoToken(text, permanent=True)
        case _Means.DENIED:
            return Denied(text, permanent=True)
        case _Means.MISCONFIGURED:
            return Misconfigured(text, permanent=True)
        case means:
            return _ERRORS[means](text)


def _rule(code: StatusCode, details: str) -> _Rule:
    for rule in _RULES:
        if rule.code is code and rule.words in details:
            return rule
    return _Rule(code, "", _Means.REFUSED if code in _DEFINITE else _Means.UNKNOWN)


def _cause(code: StatusCode, details: str) -> str:
    if code is StatusCode.DEADLINE_EXCEEDED or details == "context deadline exceeded":
        return "no answer in time"
    last = details.replace("\n", " ").rpartition("last error: ")[2].removeprefix("etcdserver: ")
    return f"{last or 'no details'} ({code.name})"
