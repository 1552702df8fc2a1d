"""`python -m chaos`: scenarios, plans of seeds, shrinking; canaries, verdicts, drawings."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from chaos import checks, cuts, op, plan, real, real_laws, report, seeds, shrink
from chaos.canaries import CANARIES, launcher
from chaos.checks import Finding, Verdict
from chaos.cuts import Series
from chaos.op import Op, Source
from chaos.record import table
from chaos.retest import why_pale
from chaos.run import SCENARIOS, NotSteady, Order, judge, run
from chaos.worlds import contain
from chaos.worlds.nodes import sound
from chaos.worlds.rig import Wanted
from chaos.worlds.services import NotHere
from chaos.worlds.sim.canaries import SIM_CANARIES, first_seeds, record

EXIT = {Verdict.YES: 0, Verdict.NO: 1, Verdict.UNKNOWN: 2}
OUT = Path(__file__).parent / "out"
WORLDS = ("sim", *real.SITES)
SIM = ("sim",)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0 YES, 1 NO, 2 UNKNOWN (or bad usage); `canary`: 0 if every one went red."""
    parser = _parser()
    args = parser.parse_args(argv)
    if why := _not_built_in(args):
        parser.error(why)
    try:
        return _do(args)
    except Exception:  # a harness that breaks down has proved nothing: no NO, whose status is 1
        traceback.print_exc()
        return EXIT[Verdict.UNKNOWN]


def _not_built_in(args: argparse.Namespace) -> str:
    """Why this run would be one without its canary, and prove nothing; "" if it would not."""
    if args.command not in ("run", "cuts") or args.canary is None:
        return ""
    if CANARIES[args.canary].supervisor:
        return f"{args.canary} is for the supervisor: `canary {args.canary}` shows it"
    if args.command == "run" and args.world in SIM:
        return "a simulated run has none: `canary NAME --world sim`"
    return ""


def _do(args: argparse.Namespace) -> int:
    match args.command:
        case "run" if args.world in real.SITES:
            return _play(args)
        case "run" if args.world is not None:
            return _simulate(args)
        case "run":
            return _run(_order(args))
        case "plan":
            made = _planned(args, args.seed)
            if args.out is not None:
                plan.save(made, args.out)
            print(plan.show(made))
            return 0
        case "shrink":
            return _shrink(args.folder, shrink.Budget(within_s=args.within))
        case "cuts":
            out = (args.out or _fresh("cuts")).resolve()
            return _cut(Series(args.count, args.ttl, args.election_ms, args.canary, out))
        case "canary" if args.world is not None:
            return _sim_canaries([args.name] if args.name else list(SIM_CANARIES), args.record)
        case "canary" if args.list:
            print("\n".join(table()))
            return 0
        case "canary":
            return _canaries([args.name] if args.name else list(CANARIES))
        case "report":
            print(_draw(args.folder))
            return 0
        case _:
            kept: Path = args.history
            return _show(_judged(op.load(kept / "history.jsonl" if kept.is_dir() else kept)))


def _judged(ops: Sequence[Op]) -> tuple[Finding, ...]:
    """By what the history is of: a scenario, a real world's plan, or a simulated one's."""
    about = next((one.value for one in ops if one.source is Source.PLAN), {})
    if "scenario" in about:
        return judge(ops)
    return real_laws.judge(ops) if "ours" in about else checks.judge(ops, seeds.ASKED)


def _draw(folder: Path) -> Path:
    """The page, with what was found at the run, or else found now."""
    findings = report.kept(folder) or _judged(op.load(folder / "history.jsonl"))
    return report.write(folder, findings)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run_ = commands.add_parser("run", help="a scenario, or plans of seeds: YES 0, NO 1, UNKNOWN 2")
    run_.add_argument("scenario", choices=SCENARIOS, nargs="?")
    run_.add_argument("--world", choices=WORLDS, help="play plans of faults drawn from seeds there")
    run_.add_argument("--plan", type=Path, help="play this plan.json")
    run_.add_argument("--seeds", type=int, default=1, help="how many, from --seed on")
    run_.add_argument("--within", type=float, help="sim: those done in so many seconds")
    _seeded(run_)
    run_.add_argument("--etcd", help="proc, netns: of this version, as 3.5")
    run_.add_argument("--members", type=int, choices=(1, 3), default=3, help="... of etcd")
    run_.add_argument("--sqlite", action="store_true", help="proc: on a SQLite file")
    run_.add_argument("--config", type=Path, help="proc, netns: your own jobs; they are really run")
    run_.add_argument("--variant", help="lease-stall: drop (default) or delay")
    defect = "build this defect in: must be NO"
    run_.add_argument("--canary", choices=CANARIES, metavar="NAME", help=defect)
    run_.add_argument("--out", type=Path, help="where to leave logs, history and verdict")
    planned = commands.add_parser("plan", help="the faults that a seed stands for")
    planned.add_argument("--out", type=Path, help="save it: for run --plan")
    planned.add_argument("--world", choices=WORLDS, default="sim", help="as it is played there")
    _seeded(planned)
    shrunk = commands.add_parser("shrink", help="the fewest faults with which a sim run fails so")
    shrunk.add_argument("folder", type=Path, help="where the run left its plan.json")
    shrunk.add_argument("--within", type=float, default=120.0, help="seconds at most (120)")
    cuts_ = commands.add_parser("cuts", help="many cuts of the leader from etcd, counted")
    cuts_.add_argument("--count", type=int, default=5)
    cuts_.add_argument("--ttl", type=int, default=5, help="of the lease, in seconds")
    cuts_.add_argument("--election-ms", type=int, default=1000, help="etcd's election timeout")
    cuts_.add_argument("--canary", choices=CANARIES, help="build this defect in")
    cuts_.add_argument("--out", type=Path, help="where to leave logs, history and tally")
    canary = commands.add_parser("canary", help="each built-in defect must turn test and check red")
    canary.add_argument("name", nargs="?", choices=[*CANARIES, *(SIM_CANARIES.keys() - CANARIES)])
    canary.add_argument("--world", choices=SIM, help="look for its first seed there")
    canary.add_argument("--list", action="store_true", help="the track record, as Markdown")
    canary.add_argument("--record", action="store_true", help="keep the first seeds of the sim's")
    check = commands.add_parser("check", help="judge a run's history again")
    check.add_argument("history", type=Path, help="a history.jsonl, or the folder it lies in")
    drawn = commands.add_parser(
        "report", help="draw a run: report.html and report.svg in its folder"
    )
    drawn.add_argument("folder", type=Path, help="where the run left its history.jsonl")
    return parser


def _seeded(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--time", type=float, help="of each run, in seconds (sim: 600, else 60)")
    parser.add_argument("--ttl", type=int, help="proc, netns: of the lease, in seconds (2)")


def _planned(args: argparse.Namespace, seed: int) -> plan.Plan:
    """What this seed stands for in that world."""
    if args.world in real.SITES:
        return real.plan_of(args.world, seed, _ms(args.time or 60), args.ttl or 2)
    return seeds.plan_of(seed, _ms(args.time or 600))


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _play(args: argparse.Namespace) -> int:
    """Plans of seeds in real time, one after the other; the worst verdict."""
    first = args.seed
    made = [_planned(args, seed) for seed in range(first, first + args.seeds)]
    if args.plan is not None:
        made = [plan.load(args.plan)]
    out = (args.out or _fresh(args.world)).resolve()
    found = [_play_one(args, one, _folder(out, one, made)) for one in made]
    return next(s for v in (Verdict.NO, Verdict.UNKNOWN, Verdict.YES) if (s := EXIT[v]) in found)


def _leave(number: int, _frame: FrameType | None) -> None:
    """What was started is ended on the way out."""
    raise SystemExit(128 + number)


def _folder(out: Path, one: plan.Plan, of: Sequence[plan.Plan]) -> Path:
    return out if len(of) == 1 else out / f"seed-{one.seed}"


def _play_one(args: argparse.Namespace, made: plan.Plan, out: Path) -> int:
    """netns: this command again, inside new namespaces, with the plan."""
    launch = launcher(args.canary) if args.canary else sound
    wanted = Wanted(
        out, made, args.etcd, args.sqlite or None, args.config, args.members, launch=launch
    )
    if real.boxed(args.world) and not contain.contained():
        if lacking := contain.missing():
            print(f"chaos: {lacking}", file=sys.stderr)
            return EXIT[Verdict.UNKNOWN]
        out.mkdir(parents=True, exist_ok=True)
        plan.save(made, out / "plan.json")
        print(f"{plan.show(made)}\n{out}", flush=True)
        canary = ("--canary", args.canary) if args.canary else ()
        return _enter(out, *real.words(args.world, wanted), *canary)
    out.mkdir(parents=True, exist_ok=True)
    if not real.boxed(args.world):
        print(f"{plan.show(made)}\n{out}", flush=True)
    signal.signal(signal.SIGTERM, _leave)
    try:
        status = _show(real.play(args.world, wanted))
    except (NotHere, OSError) as error:
        print(f"chaos: {error}", file=sys.stderr)
        return EXIT[Verdict.UNKNOWN]
    print(f"report: {_draw(out)}", flush=True)
    return status


def _simulate(args: argparse.Namespace) -> int:
    """Play plans in virtual time; those that are NO are kept. NO if one is, else YES if one is: of
    many seeds some strike nothing."""
    first = args.seed
    made = [_planned(args, seed) for seed in range(first, first + args.seeds)]
    if args.plan is not None:
        made = [plan.load(args.plan)]
    out = (args.out or _fresh("sim")).resolve()
    if len(made) == 1:
        return _show(seeds.keep(made[0], out).findings)
    found = Counter[Verdict]()
    for judged in seeds.run(made, within_s=args.within):
        found[judged.verdict] += 1
        if judged.verdict is Verdict.NO:
            folder = out / f"seed-{judged.plan.seed}"
            seeds.keep(judged.plan, folder)
            print(f"seed {judged.plan.seed}: {', '.join(sorted(judged.broken))}: {folder}")
    counted = ", ".join(f"{found[verdict]} {verdict}" for verdict in Verdict)
    print(f"seeds {first} to {first + found.total() - 1}: {counted}", flush=True)
    return next(EXIT[v] for v in (Verdict.NO, Verdict.YES, Verdict.UNKNOWN) if found[v])


def _shrink(folder: Path, budget: shrink.Budget) -> int:
    """Leaves plan.json and history.jsonl of the smallest plan in folder/shrunk. 0: it fails."""
    whole = plan.load(folder / "plan.json")
    law = seeds.judged(whole).first_broken
    if law is None:
        print("this plan breaks no law")
        return EXIT[Verdict.UNKNOWN]
    shrunk = shrink.shrink(whole, seeds.breaks_first(law), budget)
    least, kept = shrunk.plan, folder / "shrunk"
    judged = seeds.keep(least, kept)
    print(plan.show(least))
    _show(judged.findings)
    print(f"{len(least.moves)} of {len(whole.moves)} faults break {law}: {_effort(shrunk)}")
    print(f"again: python -m chaos run --world sim --plan {kept / 'plan.json'}")
    return 0


def _effort(shrunk: shrink.Shrunk) -> str:
    luck = f"under luck {shrunk.plan.luck}, " if shrunk.plan.luck else ""
    fewer = ", when the budget was spent: fewer may do" if shrunk.spent else ""
    return f"{luck}after {shrunk.tries} tries, {shrunk.took_s:.0f} s{fewer}"


def _order(args: argparse.Namespace) -> Order:
    if args.scenario is None:
        _parser().error(f"name a scenario ({', '.join(SCENARIOS)}) or a --world")
    variants = SCENARIOS[args.scenario].variants
    variant = args.variant or variants[0]
    if variant not in variants:
        _parser().error(f"{args.scenario} has no variant {variant!r}: {' or '.join(variants)}")
    return Order(args.scenario, variant, args.canary, (args.out or _fresh(args.scenario)).resolve())


def _fresh(name: str) -> Path:
    return OUT / f"{name}-{datetime.now(UTC):%Y%m%dT%H%M%S.%f}"


def _cut(series: Series) -> int:
    """As _run. Status 1: what must not happen did."""
    if not contain.contained():
        words = ("--count", series.count, "--ttl", series.ttl_s)
        more = ("--election-ms", series.election_ms, "--out", series.out)
        canary = ("--canary", series.canary) if series.canary else ()
        return _enter(series.out, "cuts", *map(str, (*words, *more, *canary)))
    try:
        tally = cuts.play(series)
    except (NotHere, NotSteady, OSError) as error:
        print(f"chaos: {error}", file=sys.stderr)
        return EXIT[Verdict.UNKNOWN]
    print(f"{tally.cuts} cuts: two gates in {tally.two_gates}, {tally.stale_runs} stale runs")
    print(*tally.broken, sep="\n", end="\n" if tally.broken else "")
    return 0 if tally.clean else 1


def _run(order: Order) -> int:
    """Outside: the same command inside new namespaces. Inside: play and judge."""
    if contain.contained():
        status = _show(run(order).findings)
        print(f"report: {_draw(order.out)}", flush=True)
        return status
    title = f"{order.scenario} ({order.variant})" + ((order.canary and f" + {order.canary}") or "")
    print(f"{title}: {order.out}", flush=True)
    return _enter(order.out, *_words(order))


def _enter(out: Path, *words: str) -> int:
    """This command again, inside new namespaces."""
    if lacking := contain.missing():
        print(f"chaos: {lacking}", file=sys.stderr)
        return EXIT[Verdict.UNKNOWN]
    out.mkdir(parents=True, exist_ok=True)
    return contain.enter([sys.executable, "-m", "chaos", *words])


def _words(order: Order) -> Iterator[str]:
    yield from ("run", order.scenario, "--variant", order.variant, "--out", str(order.out))
    if order.canary:
        yield from ("--canary", order.canary)


def _show(findings: Sequence[Finding]) -> int:
    for finding in findings:
        print(f"  {finding.verdict:<7} {finding.check:<28} {finding.text}")
    verdict = checks.verdict(findings)
    print(verdict, flush=True)
    return EXIT[verdict]


def _canaries(names: Sequence[str]) -> int:
    pale = [where for name in names for where in _pale(name)]
    for canary in pale:
        print(f"canary {canary} did not go red: the harness does not see this defect")
    print("every canary went red" if not pale else "NOT every canary went red")
    return 1 if pale else 0


def _sim_canaries(names: Sequence[str], keep: bool) -> int:
    """Whether each breaks a law within the seeds that it is given. keep: which seed did it."""
    if unknown := [name for name in names if name not in SIM_CANARIES]:
        print(f"{unknown[0]}: no canary of the sim")
        return 1
    found = []
    for name, judged in first_seeds(names):
        found.append((name, judged))
        shown = "not red"
        if judged is not None:
            shown = f"seed {judged.plan.seed}: {', '.join(sorted(judged.broken))}"
        print(f"{name}: {shown}", flush=True)
    if keep:
        record(found)
    pale = [name for name, judged in found if judged is None]
    print("every canary went red" if not pale else f"NOT red: {', '.join(pale)}")
    return 1 if pale else 0


def _pale(name: str) -> Iterator[str]:
    """Where the defect is not seen."""
    canary = CANARIES[name]
    for test in canary.tests:
        print(f"{name}: {test}", flush=True)
        if why := why_pale(canary, test):
            print(why)
            yield f"{name} in {test}"
    for scenario in canary.scenarios:
        if not _went_red(name, scenario):
            yield f"{name} in {scenario}"


def _went_red(name: str, scenario: str) -> bool:
    """Whether the check that is there for this defect said NO."""
    out = _fresh(f"{scenario}-{name}")
    _run(Order(scenario, SCENARIOS[scenario].variants[0], name, out))
    try:
        findings = json.loads((out / "verdict.json").read_text(encoding="utf-8"))["findings"]
    except FileNotFoundError:
        return False
    return (CANARIES[name].red, Verdict.NO) in {(f["check"], f["verdict"]) for f in findings}


if __name__ == "__main__":
    sys.exit(main())
