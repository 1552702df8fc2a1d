"""A daemon's stand-in under the supervisor: does what the test writes to stdin, tells on stdout, or
the descriptor in $STAND_IN_TELL.

Commands, one JSON object a line: {"say": X} is passed on to the supervisor; {"spawn": ARGV} starts
a process in a session of its own; {"exit": N}; {"exec": ARGV} becomes another program;
{"hang_up": true} closes the link. Told: what the
supervisor says, signals, and the end of the link, which it does not survive.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys

TELL = int(os.environ.get("STAND_IN_TELL", "1"))


def tell(**what: object) -> None:
    os.write(TELL, json.dumps(what).encode() + b"\n")


def start_ticks(pid: int) -> int:
    with open(f"/proc/{pid}/stat", "rb") as stat:
        return int(stat.read().rpartition(b")")[2].split()[19])


def obey(command: dict[str, object], link: socket.socket) -> bool:
    """Whether the link stays."""
    match command:
        case {"say": said}:
            link.sendall(json.dumps(said).encode() + b"\n")
        case {"spawn": list(argv)}:
            child = subprocess.Popen(argv, start_new_session=True)
            tell(spawned=child.pid, start=start_ticks(child.pid))
            children.append(child)
        case {"exit": int(code)}:
            os._exit(code)
        case {"exec": list(argv)}:
            os.execv(argv[0], argv)
        case {"hang_up": _}:
            link.close()
            tell(hung_up=True)
            return False
    return True


children: list[subprocess.Popen[bytes]] = []


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, lambda number, _: tell(signal=number))
    link = socket.socket(fileno=int(os.environ["CRON_LEADER_SUPERVISOR_FD"]))
    os.set_inheritable(link.fileno(), False)
    tell(up=os.getpid(), session=os.getsid(0))
    sources: list[object] = [0, link]
    rest = {0: b"", link.fileno(): b""}
    while True:
        for source in select.select(sources, [], [])[0]:
            fd = source if isinstance(source, int) else source.fileno()
            chunk = os.read(fd, 65536)
            if not chunk and fd:
                tell(gone=True)
                sys.exit(0)
            if not chunk:
                sources.remove(0)
            *lines, rest[fd] = (rest[fd] + chunk).split(b"\n")
            for line in map(json.loads, lines):
                if fd:
                    tell(heard=line)
                elif not obey(line, link):
                    sources.remove(link)


if __name__ == "__main__":
    main()
