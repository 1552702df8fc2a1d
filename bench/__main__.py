"""`python -m bench [FIGURE ...]`: measure, and print a table."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import history, hostile, inline, ledger, line, measure
from bench.cuts import cuts
from bench.figures import Figure, Skipped
from bench.load import load
from bench.setups import Place
from cron_leader.errors import CronLeaderError
from cron_leader.etcd.embedded import EmbeddedEtcd
from tests import pg_kit

Measured = Figure | Skipped


class Bench:
    """The measurements by the name they are asked for on the command line."""

    def __init__(self, options: argparse.Namespace, folder: Path, endpoint: str) -> None:
        self._options = options
        self._folder = folder
        self._endpoint = endpoint

    def all(self) -> dict[str, Callable[[], Awaitable[Sequence[Measured]]]]:
        return {
            "version": self.version,
            "start": self.start,
            "start-postgres": self.start_postgres,
            "handover": self.handover,
            "handover-postgres": self.handover_postgres,
            "next-dies-too": self.next_dies_too,
            "crash": self.crash,
            "one-way": self.one_way,
            "idle": self.idle,
            "requests": self.requests,
            "crowd": self.crowd,
            "freeze": self.freeze,
            "phantoms": self.phantoms,
            "cuts": self.cuts,
            "alignment": self.alignment,
            "inline": self.inline,
            "boundary": self.boundary,
            "starts": self.starts,
            "hostile": self.hostile,
            "load": self.load,
            "history": self.history,
            "takeover": self.takeover,
            "claims": self.claims,
            "raise": self.raises,
            "rate": self.rate,
        }

    async def version(self) -> Sequence[Measured]:
        return [await asyncio.to_thread(measure.version, self._options.times)]

    async def start(self) -> Sequence[Measured]:
        place = self._place("start")
        times = self._options.times
        return [await measure.start(place, times, name="SQLite", target_ms=400)]

    async def start_postgres(self) -> Sequence[Measured]:
        name = "exec -> gate open, Postgres"
        with _postgres() as url:
            if url is None:
                return [Skipped(name, "no Postgres binaries found")]
            place = self._place("start-postgres", ledger=url)
            times = self._options.times
            return [await measure.start(place, times, name="Postgres", target_ms=500)]

    async def handover(self) -> Sequence[Measured]:
        place = self._place("handover")
        return await measure.handover(place, self._options.times, name="SQLite")

    async def handover_postgres(self) -> Sequence[Measured]:
        with _postgres() as url:
            if url is None:
                return [Skipped("handover, Postgres", "no Postgres binaries found")]
            place = self._place("handover-postgres", ledger=url)
            return await measure.handover(place, self._options.times, name="Postgres")

    async def next_dies_too(self) -> Sequence[Measured]:
        return await line.next_dies_too(self._place("next-dies-too"), self._options.times)

    async def requests(self) -> Sequence[Measured]:
        return [await line.requests(self._place("requests"), self._options.minutes * 60)]

    async def crowd(self) -> Sequence[Measured]:
        return [await line.crowd(self._place("crowd"), self._options.candidates)]

    async def phantoms(self) -> Sequence[Measured]:
        return [await line.phantoms(self._place("phantoms"), self._options.freezes)]

    async def crash(self) -> Sequence[Measured]:
        return await measure.crash(self._place("crash"), self._options.times)

    async def one_way(self) -> Sequence[Measured]:
        return [await measure.one_way(self._place("one-way"), self._options.times)]

    async def idle(self) -> Sequence[Measured]:
        seconds = self._options.minutes * 60
        with _postgres() as url:
            if url is None:
                return await measure.idle(self._place("idle"), seconds, ledger="SQLite")
            place = self._place("idle", ledger=url)
            return await measure.idle(place, seconds, ledger="Postgres")

    async def freeze(self) -> Sequence[Measured]:
        def told(done: int) -> None:
            print(f"\rfrozen {done} of {self._options.freezes} times", end="", file=sys.stderr)

        figures = await measure.frozen(self._place("freeze"), self._options.freezes, told=told)
        print(file=sys.stderr)
        return figures

    async def cuts(self) -> Sequence[Measured]:
        return await cuts(self._place("cuts").folder, self._options.cuts)

    async def alignment(self) -> Sequence[Measured]:
        return await measure.alignment(self._place("alignment"), self._options.minutes)

    async def inline(self) -> Sequence[Measured]:
        return await inline.crowd(self._place("inline"), self._options.seconds)

    async def boundary(self) -> Sequence[Measured]:
        seconds = 2 * self._options.seconds
        small = self._place("boundary")
        figures = await inline.boundary(small, seconds, name="SQLite", targets=(0.8, 2))
        with _postgres() as url:
            if url is None:
                return [*figures, Skipped("boundary, Postgres", "no Postgres binaries found")]
            place = self._place("boundary-postgres", ledger=url)
            more = await inline.boundary(place, seconds, name="Postgres", targets=(1.3, 3))
        return [*figures, *more]

    async def starts(self) -> Sequence[Measured]:
        return await inline.starts(self._place("starts"), self._options.seconds)

    async def hostile(self) -> Sequence[Measured]:
        return await hostile.hostile(self._place("hostile"))

    async def load(self) -> Sequence[Measured]:
        return await asyncio.to_thread(load, self._place("load").folder)

    async def history(self) -> Sequence[Measured]:
        rows = self._options.rows
        small = self._place("history-sqlite")
        small = replace(small, ledger=f"sqlite:///{small.folder}/ledger.db")
        figures = await history.big(small, rows // 10, name="SQLite")
        with _postgres() as url:
            if url is None:
                return [*figures, Skipped("history, Postgres", "no Postgres binaries found")]
            place = self._place("history-postgres", ledger=url)
            return [*figures, *await history.big(place, rows, name="Postgres")]

    async def takeover(self) -> Sequence[Measured]:
        small = f"sqlite:///{self._place('takeover').folder}/ledger.db"
        figures = await history.takeover(small, 100_000, name="SQLite")
        with _postgres() as url:
            if url is None:
                return [*figures, Skipped("takeover, Postgres", "no Postgres binaries found")]
            return [*figures, *await history.takeover(url, 100_000, name="Postgres")]

    async def claims(self) -> Sequence[Measured]:
        with _postgres() as url:
            if url is None:
                return [Skipped("claims, Postgres", "no Postgres binaries found")]
            return await ledger.claims(url, self._options.times)

    async def raises(self) -> Sequence[Measured]:
        with _postgres() as url:
            if url is None:
                return [Skipped("raise, Postgres", "no Postgres binaries found")]
            return [await ledger.raises(url, self._options.times)]

    async def rate(self) -> Sequence[Measured]:
        url = f"sqlite:///{self._place('rate').folder}/ledger.db"
        return [await ledger.rate(url, self._options.times)]

    def _place(self, name: str, *, ledger: str | None = None) -> Place:
        """Each figure has a fleet of its own: name, folder, ledger."""
        folder = self._folder / name
        folder.mkdir()
        return Place(name, folder, self._endpoint, ledger or "sqlite:///ledger.db")


@contextlib.contextmanager
def _postgres() -> Iterator[str | None]:
    """URL of an empty throw-away database; None if there are no binaries."""
    found = pg_kit.installed()
    if not found:
        yield None
        return
    with pg_kit.postgres(found[max(found)], durable=True) as server, server.database() as url:
        yield url


async def run(options: argparse.Namespace) -> int:
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    with (
        tempfile.TemporaryDirectory(prefix="cron-leader-bench-") as folder,
        EmbeddedEtcd(Path(folder) / "etcd") as etcd,
    ):
        figures = await _measure(Bench(options, Path(folder), etcd.endpoint), options.figures)
    if options.markdown:
        print(markdown(figures))
    else:
        console.print(table(figures))
    return 1 if any(isinstance(x, Figure) and x.safety and not x.met for x in figures) else 0


async def _measure(bench: Bench, names: Sequence[str]) -> list[Measured]:
    found: list[Measured] = []
    for name, figure in bench.all().items():
        if not names or name in names:
            print(f"measuring: {name}", file=sys.stderr)
            found += await figure()
    return found


TITLES = ("figure", "measured", "target", "", "samples", "beside")


def cells(figure: Measured) -> tuple[str, ...]:
    """The row of a figure, under TITLES."""
    match figure:
        case Skipped(name, why):
            return (name, "-", "", "skipped", "", why)
        case Figure(name, value, target, unit, samples, beside):
            digits = {"runs": 0, "times": 0, "%": 2}.get(unit, 1)
            measured = f"{value:.{digits}f} {unit}".rstrip()
            mark = "met" if figure.met else "missed"
            return (name, measured, f"{target:g}", mark, str(samples), beside)


def table(figures: Sequence[Measured]) -> Table:
    """A missed target is marked; only a missed safety target is a failure."""
    shown = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for title in TITLES:
        numeric = title in {"measured", "target", "samples"}
        wordy = title in {"figure", "beside"}
        shown.add_column(title, justify="right" if numeric else "left", no_wrap=not wordy)
    for figure in figures:
        row = cells(figure)
        shown.add_row(*row, style="red" if "missed" in row else "")
    return shown


def markdown(figures: Sequence[Measured]) -> str:
    """For the README."""
    rows = [TITLES, ("---",) * len(TITLES), *(cells(figure) for figure in figures)]
    return "\n".join(f"| {' | '.join(row)} |".replace("*", r"\*") for row in rows)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("figures", nargs="*", help="which to measure (default: all)")
    parser.add_argument("--times", type=int, default=10, help="samples of a start or a failover")
    parser.add_argument("--freezes", type=int, default=20, help="how often to freeze the leader")
    parser.add_argument("--cuts", type=int, default=3, help="from etcd, at each of two TTLs")
    parser.add_argument(
        "--minutes", type=float, default=2, help="of ticking on each side, of idling"
    )
    parser.add_argument("--seconds", type=int, default=10, help="of inline and python jobs")
    parser.add_argument("--candidates", type=int, default=200, help="in the line of `crowd`")
    parser.add_argument("--rows", type=int, default=1_000_000, help="slots of `history`")
    parser.add_argument("--markdown", action="store_true", help="print the README's table")
    options = parser.parse_args(argv)
    known = Bench(options, Path(), "").all()
    if unknown := [name for name in options.figures if name not in known]:
        parser.error(f"no figure {unknown[0]!r}; there are: {', '.join(known)}")
    return options


def main() -> int:
    try:
        return asyncio.run(run(parse(None)))
    except CronLeaderError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
