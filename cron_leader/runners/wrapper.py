"""The run wrapper: a process that stands ready, waits for "go", and becomes the job.

It execs only if it is told to, the boot clock has not passed the deadline in the "go", and end of
file has not come behind it: so a message that sat in a frozen process, or in one that waited for
its turn, starts nothing. End of file instead of "go" ends it, and so does the death of its parent
(Linux). It runs as `python -I -S wrapper.py CONTROL PARENT`, is the
leader of its session and process group, and answers on the control socket with a JSON array:

    ["late"]                    past the deadline: nothing ran
    ["taken back"]              the "go" was: nothing ran
    ["failed", CODE, TEXT]      could not exec; CODE as a shell counts (126, 127)
    end of file                 exec happened: the socket is close-on-exec

A cold start is on the path of every run that finds no spare, so this imports next to nothing: json
and signal together would double the start, hence marshal (the same interpreter wrote the message)
and libc's signal().
"""

from __future__ import annotations

import ctypes
import marshal
import os
import sys
import time
from typing import Any

_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_PR_SET_PDEATHSIG, _SIGKILL, _SIG_DFL = 1, 9, None
RLIMITS = {
    "cpu": "RLIMIT_CPU",
    "files": "RLIMIT_NOFILE",
    "processes": "RLIMIT_NPROC",
    "memory": "RLIMIT_AS",  # last: from there on this process has no more either
}
"""Limits by their names in the configuration, in the order in which they are set."""

_RESET = (1, 2, 3, 13, 15, 25)  # HUP INT QUIT PIPE TERM XFSZ: the same on Linux and macOS


def die_with(parent: int) -> None:
    """Have the kernel kill this process when `parent` dies; exit if it has died already.

    Only Linux can; it counts from the death of the parent's *thread* that started us, so the daemon
    and the job host start processes from their main thread only.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def default_signals() -> None:
    """Undo what an interpreter, or whoever started the daemon, ignores: that outlives an exec."""
    libc = ctypes.CDLL(None)
    libc.signal.restype = ctypes.c_void_p
    libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    for number in _RESET:
        libc.signal(number, _SIG_DFL)


def wait_for_go(control: int) -> dict[str, Any]:
    """The "go" message; exits if the other end closes first."""
    try:
        with open(control, "rb", closefd=False) as stream:
            return marshal.load(stream)  # type: ignore[no-any-return]
    except (EOFError, OSError):
        os._exit(0)


def is_late(deadline_ns: int) -> bool:
    return time.clock_gettime_ns(_BOOT) >= deadline_ns


def is_taken_back(control: int) -> bool:
    """Whether end of file has come behind the "go": the daemon thought better of it."""
    os.set_blocking(control, False)
    try:
        return not os.read(control, 1)
    except OSError as error:
        return not isinstance(error, BlockingIOError)
    finally:
        os.set_blocking(control, True)


def tell(control: int, *answer: object) -> None:
    """Send one answer; the daemon may have gone, which is no matter of ours."""
    import json  # only on the way out: see above

    try:
        os.write(control, json.dumps(answer).encode() + b"\n")
    except OSError:
        pass


def confine(bounds: dict[str, Any], env: dict[str, str], parent: int) -> str | None:
    """Become the process the job asks for, for good; the reason if that is impossible.

    bounds: umask, nice, limits, user, those that are asked for. env gets the user's HOME. What
    needs root is done while we have it: the user last.
    """
    if "limits" in bounds or "user" in bounds:
        import json  # noqa: F401  `tell` may not be able to: for want of memory, or of rights
    if "umask" in bounds:
        os.umask(bounds["umask"])
    for ask, become_it in (("nice", _be_nice), ("limits", _limit)):
        if ask in bounds and (why := become_it(bounds[ask])) is not None:
            return why
    if "user" in bounds:
        why = _be_user(bounds["user"], env)
        die_with(parent)  # the kernel forgets that when the user changes
        return why
    return None


_LAST_GID = 2**32 - 2
"""One more says to the kernel: leave it."""


def account(user: str) -> tuple[str, int, int, str]:
    """Name, uid, gid and home of "user" or "user:group", names or numbers. Raises LookupError."""
    import grp
    import pwd

    name, _, group = user.partition(":")
    try:
        entry = pwd.getpwuid(int(name)) if _is_number(name) else pwd.getpwnam(name)
    except (KeyError, OverflowError):
        raise LookupError(f"no user {name!r} on this host") from None
    try:
        gid = entry.pw_gid
        if group:
            gid = int(group) if _is_number(group) else grp.getgrnam(group).gr_gid
        if gid > _LAST_GID:
            raise KeyError(group)
    except KeyError:
        raise LookupError(f"no group {group!r} on this host") from None
    return entry.pw_name, entry.pw_uid, gid, entry.pw_dir


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _be_user(user: str, env: dict[str, str]) -> str | None:
    try:
        name, uid, gid, home = account(user)
        if (uid, gid) != (os.geteuid(), os.getegid()) or uid == 0:
            os.initgroups(name, gid)
            os.setgid(gid)
            os.setuid(uid)
    except LookupError as error:
        return f"user = {user!r}: {error.args[0]}"
    except (OSError, OverflowError) as error:
        return f"user = {user!r}: only root may start runs as another user: {error}"
    for key, value in (("HOME", home), ("USER", name), ("LOGNAME", name)):
        env.setdefault(key, value)
    return None


def _be_nice(nice: int) -> str | None:
    try:
        os.setpriority(os.PRIO_PROCESS, 0, nice)
    except OSError as error:
        return f"nice = {nice}: {error.strerror}"
    try:  # Linux weighs sessions first where it groups by them, and each run is one
        with open("/proc/self/autogroup", "w", encoding="ascii") as group:
            group.write(str(nice))
    except OSError:
        pass
    return None


def _limit(limits: dict[str, int]) -> str | None:
    """Soft and hard limit are one, but for cpu: SIGXCPU first, SIGKILL a second later."""
    import resource

    for name in [name for name in RLIMITS if name in limits]:
        value = limits[name]
        try:
            hard = value + 1 if name == "cpu" else value
            resource.setrlimit(getattr(resource, RLIMITS[name]), (value, hard))
        except (OSError, ValueError, AttributeError, OverflowError) as error:
            return f"limits.{name} = {value}: {error}"
    return None


def change_folder(path: str | None) -> str | None:
    """Enter the job's folder; the reason if that is impossible."""
    try:
        if path is not None:
            os.chdir(path)
    except OSError as error:
        return f"cannot enter the folder {path!r} (cwd): {error.strerror}"
    return None


def become(argv: list[str], env: dict[str, str]) -> tuple[int, str]:
    """Exec; returns only on failure: the exit code a shell would give, and the reason.

    The search of PATH is our own: that of os.execvpe imports a module first, 2 ms in the hot path.
    """
    name, path = argv[0], env.get("PATH", os.defpath)
    failure = 127, f"command {name!r} not found" + ("" if "/" in name else f" on PATH {path}")
    for file in (
        [name] if "/" in name else [f"{folder or '.'}/{name}" for folder in path.split(":")]
    ):
        try:
            os.execve(file, argv, env)
        except (FileNotFoundError, NotADirectoryError):
            if os.path.isfile(file):
                failure = 127, f"command {file!r}: the interpreter in its first line does not exist"
        except PermissionError:
            failure = 126, f"command {file!r} is not executable"
        except (OSError, ValueError) as error:
            return 126, f"command {file!r}: {error}"
    return failure


def main(control: int, parent: int) -> None:
    os.set_inheritable(control, False)
    die_with(parent)
    default_signals()
    go = wait_for_go(control)
    why = confine(go["bounds"], go["env"], parent) or change_folder(go["cwd"])
    if why is not None:
        tell(control, "failed", 126, why)
    elif is_late(go["deadline_ns"]):
        tell(control, "late")
    elif is_taken_back(control):
        tell(control, "taken back")
    else:
        tell(control, "failed", *become(go["argv"], go["env"]))
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
