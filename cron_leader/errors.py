"""The exceptions of cron_leader, named by whose fault it is and by what is known.

Refused writes, lost leadership and failed runs are no exceptions: they are values. Foreign
exceptions (gRPC, psycopg, sqlite3) are mapped to these once, in etcd/ and ledger/.
"""

from __future__ import annotations


class CronLeaderError(Exception):
    """Base of everything raised on purpose; its text is one line for the operator: cause, cure."""


class ConfigError(CronLeaderError):
    """The user's input is wrong; exit code 2. The text names file, key, value, rule and cure."""


class EtcdUnavailable(CronLeaderError):
    """No definite answer from etcd: the request may or may not have been applied."""


class EtcdRefused(CronLeaderError):
    """etcd answered with a definite no (credentials, TLS, permission, NOSPACE); nothing applied.

    permanent: trying again cannot help until a person acts (bad credentials, TLS mismatch).
    """

    def __init__(self, text: str, *, permanent: bool = False) -> None:
        super().__init__(text)
        self.permanent = permanent


class LedgerUncertain(CronLeaderError):
    """No definite answer from the ledger: the statement may have committed. Send it again."""


class LedgerNotCommitted(LedgerUncertain):
    """No answer, but nothing committed: it was never sent, or was rolled back. Send it again."""


class LedgerUnusable(CronLeaderError):
    """The ledger cannot be used as configured (password, permission, scheme, foreign schema).

    permanent: trying again cannot help until a person acts; False for a full disk and the like.
    """

    def __init__(self, text: str, *, permanent: bool = True) -> None:
        super().__init__(text)
        self.permanent = permanent
