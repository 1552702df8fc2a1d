"""The program the jobs run: it writes down, itself, that it ran. Started as a script, stdlib only.

    effects.py FILE mark              began, ended
    effects.py FILE hold              began, a beat every 50 ms, until killed
    effects.py FILE wait RELEASE      began, a beat every 50 ms, ended once the file RELEASE exists
    effects.py FILE last SECONDS      began, a beat every 50 ms, ended after so long

A line is one write to a file opened for append, so that runs of several nodes share one file.
"""

from __future__ import annotations

import json
import os
import sys
import time

BEAT_S = 0.05


def note(out: int, what: str) -> None:
    line = {
        "at_ns": time.clock_gettime_ns(time.CLOCK_BOOTTIME),
        "what": what,
        "pid": os.getpid(),
        "job": os.environ["CRON_LEADER_JOB"],
        "scheduled_for": os.environ["CRON_LEADER_SCHEDULED_FOR"],
        "fence": int(os.environ["CRON_LEADER_FENCE"]),
        "node": os.environ["CRON_LEADER_NODE"],
        "attempt": int(os.environ["CRON_LEADER_ATTEMPT"]),
    }
    os.write(out, json.dumps(line).encode() + b"\n")


def goes_on(mode: str, until: str, began_s: float) -> bool:
    match mode:
        case "hold":
            return True
        case "wait":
            return not os.path.exists(until)
        case "last":
            return time.monotonic() < began_s + float(until)
        case _:
            return False


def main(path: str, mode: str, until: str = "") -> None:
    out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    began_s = time.monotonic()
    note(out, "began")
    while goes_on(mode, until, began_s):
        time.sleep(BEAT_S)
        note(out, "beat")
    note(out, "ended")


if __name__ == "__main__":
    main(*sys.argv[1:])
