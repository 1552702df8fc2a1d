"""Parent of the daemon: reaps, forwards signals, kills runs the daemon no longer can, revokes.

Started as `python -S -E supervisor.py [--log-format json|console] [--node ID] [--fleet F] -- CMD
ARG...`. It runs on the standard library and on supervision/, the folder beside this file, and
imports nothing else of cron_leader: it stays small, and outlives whatever breaks the daemon.

It decides three things. The lease deadline passed without a renewal: the run groups that may not
outlive their term get SIGKILL, even if the daemon is frozen. The daemon died (by wait status, never
by a closed pipe): every run group gets SIGKILL, and only once all are gone is the lease revoked, so
that a successor need not wait for it to expire. A second SIGTERM or SIGINT: both at once. Then it
exits with the daemon's status (128 + n for signal n); restarting is for systemd or Kubernetes.

Under systemd (Type=notify) it says READY=1, STOPPING=1, and WATCHDOG=1 while the daemon's loop
comes round. The SIGABRT of a watchdog that heard nothing is taken as a second SIGTERM is.

Not promised: to outlive a kill of the whole cgroup or host (the lease's expiry decides then), nor
to find processes that left the group of their run.

The daemon speaks over one end of a socket pair, its number in $CRON_LEADER_SUPERVISOR_FD, one JSON
object a line:
    {"op": "lease", "seq": n, "lease": id, "ttl_ns": n, "endpoints": [..], "ca": .., "cert": ..,
     "key": .., "user": .., "password": .., "password_file": ..}                  acknowledged
    {"op": "deadline", "boot_ns": n}
    {"op": "run", "seq": n, "run": id, "pgid": n, "start": n, "finish": bool}     acknowledged
    {"op": "end", "run": id}
    {"op": "released", "lease": id}             the daemon itself has revoked the lease
    {"op": "ready"}                             it is in line, or leads
    {"op": "alive"}                             its loop came round; said at most once a second
An acknowledgement, {"ack": seq}, is sent once what was said is recorded.
"""

import os
import sys


def main() -> int:
    """Run the parts from their cached byte code: compiling them here would cost 16 ms and 2 MB."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, here)
    from supervision.start import main  # type: ignore[import-not-found]

    sys.path[:] = [path for path in sys.path if path != here]  # its names are not the library's
    return int(main(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
