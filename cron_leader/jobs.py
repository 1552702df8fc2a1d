"""`@job` and `Tick`: all that a user's module needs to see of cron_leader.

`@job` only notes down the definition, with the keys of a `[[job]]` table; the configuration
validates it. The function stays an ordinary function of one argument, so a test calls it directly:
`expire_sessions(Tick.for_test())`. Standard library only: the job host imports this and forks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any, Protocol, TypeVar

Function = TypeVar("Function", bound="Callable[[Tick], object]")

_definitions: dict[str, dict[str, object]] = {}


class Opener(Protocol):
    """Opens a run's fenced transactions; given by whatever runs the function."""

    def __call__(
        self, *, final: bool, isolation: str, target: str | None
    ) -> AbstractContextManager[Any]: ...


def _never() -> bool:
    return False


def _no_transaction(
    *, final: bool, isolation: str, target: str | None
) -> AbstractContextManager[Any]:
    raise RuntimeError(
        'tick.transaction() works in a job of isolation = "process" that the daemon runs; in a '
        "test, give Tick.for_test(transaction=connection)"
    )


@dataclass(frozen=True, slots=True)
class Tick:
    """What a run is told about itself. All times are aware UTC datetimes.

    fence: grows with every term of the election; hand it to whatever can refuse an older one.
    attempt: counts from 1. run_deadline: when the run is stopped; its start plus the job's timeout.
    """

    job: str
    scheduled_for: datetime
    fence: int
    lease: int
    node: str
    attempt: int
    run_deadline: datetime
    _asked_to_stop: Callable[[], bool] = field(default=_never, repr=False, compare=False)
    _opener: Opener = field(default=_no_transaction, repr=False, compare=False)
    _guard: Mapping[str, object] | None = field(default=None, repr=False, compare=False)

    @property
    def cancelled(self) -> bool:
        """Whether the run was asked to stop (SIGTERM); after the job's grace it is killed.

        An async function is cancelled as well, in the way of asyncio.
        """
        return self._asked_to_stop()

    @property
    def guard(self) -> Mapping[str, object]:
        """What `cron_leader.fencing.GUARD` takes: the election, the fence and the term's nonce.

        For a session of your own, SQLAlchemy's for one; the nonce is a secret of the term.
        """
        if self._guard is None:
            raise RuntimeError('tick.guard is there in a job of isolation = "process"')
        return self._guard

    def transaction(
        self, *, final: bool = True, isolation: str = "read committed", target: str | None = None
    ) -> AbstractContextManager[Any]:
        """A connection to the ledger's database (psycopg 3 or sqlite3), in a fenced transaction.

        At the end of the block the run's success and the guard are written, then COMMIT: all or
        nothing. final: False for every block of a run but the last; it commits without the success.
        isolation: of Postgres, as SQL names it. target: the [[fence_target]] whose database is
        meant; guarded too, but the success is not written there. Raises StaleFence when a newer
        leader refuses it.
        """
        return self._opener(final=final, isolation=isolation, target=target)

    @classmethod
    def for_test(
        cls,
        *,
        job: str = "test",
        scheduled_for: datetime | None = None,
        fence: int = 1,
        lease: int = 1,
        node: str = "test",
        attempt: int = 1,
        run_deadline: datetime | None = None,
        cancelled: bool = False,
        transaction: object = None,
    ) -> Tick:
        """A tick to call a job function with, outside of any fleet; due now, an hour to run.

        transaction: the connection that `transaction()` gives; it is neither committed nor closed.
        """
        now = datetime.now(UTC)
        return cls(
            job=job,
            scheduled_for=scheduled_for or now,
            fence=fence,
            lease=lease,
            node=node,
            attempt=attempt,
            run_deadline=run_deadline or now + timedelta(hours=1),
            _asked_to_stop=lambda: cancelled,
            _opener=_no_transaction if transaction is None else _lender(transaction),
            _guard={"election": "test/0", "fence": fence, "nonce": "test"},
        )


def _lender(connection: object) -> Opener:
    def lend(*, final: bool, isolation: str, target: str | None) -> AbstractContextManager[Any]:
        return nullcontext(connection)

    return lend


def job(
    *,
    name: str | None = None,
    renamed_from: str | None = None,
    cron: str | Sequence[str] | None = None,
    every: str | None = None,
    at: str | Sequence[str] | None = None,
    timezone: str | None = None,
    anchor: str | None = None,
    start: str | None = None,
    end: str | None = None,
    dst_gap: str | None = None,
    dst_fold: str | None = None,
    timeout: str | None = None,
    grace: str | None = None,
    drain: str | None = None,
    overlap: str | None = None,
    max_parallel: int | None = None,
    queue_limit: int | None = None,
    when_full: str | None = None,
    group: str | None = None,
    priority: int | None = None,
    retries: int | None = None,
    backoff: str | None = None,
    backoff_max: str | None = None,
    retry_on: Sequence[str] | None = None,
    retry_exit_codes: Sequence[int] | None = None,
    retry_budget: int | None = None,
    catchup: str | None = None,
    catchup_limit: int | None = None,
    start_within: str | None = None,
    jitter: str | None = None,
    blackout: str | Mapping[str, str] | Sequence[str | Mapping[str, str]] | None = None,
    delivery: str | None = None,
    on_lost_leadership: str | None = None,
    isolation: str | None = None,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    user: str | None = None,
    umask: str | None = None,
    nice: int | None = None,
    limits: Mapping[str, str | int] | None = None,
) -> Callable[[Function], Function]:
    """Make a function a job; the options are the keys of a `[[job]]` table, None means not given.

    name defaults to the function's, with `-` for `_`. Raises TypeError, at import, for anything but
    a function at module level that takes one argument.
    """
    options = {key: value for key, value in locals().items() if value is not None}

    def note(function: Function) -> Function:
        target = _target(function)
        default = {"name": target.rpartition(":")[2].replace("_", "-")}
        _definitions[target] = {**default, **options, "python": target}
        return function

    return note


def definitions() -> tuple[Mapping[str, object], ...]:
    """A `[[job]]` table for each `@job` of the modules imported so far, in order of definition."""
    return tuple(_definitions.values())


def resolve(target: str) -> Callable[[Tick], object]:
    """The function that "pkg.mod:func" names.

    Raises LookupError if the module lacks it, else whatever importing the module raises.
    """
    module_name, colon, name = target.partition(":")
    if not (module_name and colon and name):
        raise LookupError(f'"{target}" does not name a function; write "package.module:function"')
    module = import_module(module_name)
    function = getattr(module, name, None)
    if not callable(function):
        raise LookupError(f"module {module_name} has no function {name}{_nearest(name, module)}")
    return function  # type: ignore[no-any-return]


def _nearest(name: str, module: object) -> str:
    from difflib import get_close_matches

    functions = [key for key, value in vars(module).items() if callable(value)]
    close = get_close_matches(name, functions, 1)
    return f"; did you mean {close[0]}?" if close else ""


def _target(function: Callable[[Tick], object]) -> str:
    from inspect import signature

    name = getattr(function, "__qualname__", repr(function))
    if "." in name or not name.isidentifier():
        raise TypeError(f"@job on {name}: a job is a function at the top level of its module")
    try:
        signature(function).bind(None)
    except TypeError as error:
        raise TypeError(f"@job on {name}: a job takes one argument, the Tick ({error})") from None
    return f"{function.__module__}:{name}"
