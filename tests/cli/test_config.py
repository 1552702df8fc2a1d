"""The configuration: what is refused, in which words; what is accepted, and what it becomes."""

from __future__ import annotations

import sys
import tomllib
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from cron_leader.config import (
    Config,
    LeaseConfig,
    build_jobs,
    check_margin,
    load,
    merge_jobs,
)
from cron_leader.config.blackouts import _public_holidays
from cron_leader.config.units import parse_duration, parse_rate, show_duration
from cron_leader.core.model import (
    Catchup,
    CommandSpec,
    Delivery,
    HttpSpec,
    Isolation,
    Limits,
    OnLostLeadership,
    Overlap,
    PythonSpec,
    ShellSpec,
    WhenFull,
)
from cron_leader.core.schedule import At, Cron, Every
from cron_leader.errors import ConfigError

S = 1_000_000_000
JOB = '[[job]]\nname = "digest"\n'
RUNS = 'shell = ":"\n'
DAILY = 'cron = "0 9 * * *"\n'
URL = 'url = "https://h/"\n'


def read(text: str, **environ: str) -> Config:
    path = Path("cron-leader.toml")
    path.write_text(text)
    return load(path, environ=environ)


def refusal(text: str, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(text, **environ)
    return str(caught.value)


# ------------------------------------------------------------------ what is refused

BAD = {
    "unreadable TOML": ("[lease\n", ["cron-leader.toml: not valid TOML", "line 1"]),
    "unknown section": ("[leas]\n", [":1: [leas]: unknown key; did you mean lease?"]),
    "unknown key": ('[lease]\ntll = "10s"', [':2: [lease] tll = "10s"', "did you mean ttl?"]),
    "unknown for its case": ('[run]\nMax-Parallel = 3', ["did you mean max_parallel?"]),
    "unknown for its letters": ('[lease]\nTTL = "9s"', ["unknown key; did you mean ttl?"]),
    "unknown top-level key": ('ttl = "10s"', [':1: ttl = "10s": unknown key']),
    "unknown job key": (JOB + 'crn = "x"', [':3: [[job]] "digest" crn', "did you mean cron?"]),
    "key of a later release": (JOB + DAILY + RUNS + "rerun = 3", ["rerun = 3: unknown key"]),
    "single brackets": ('[job]\nname = "x"', ["must be written [[job]]"]),
    "number for a duration": ("[lease]\nttl = 10", ['must be text in quotes; write "10s"']),
    "part of a number for a duration": ("[run]\ndrain = 1.5", ['quotes; write "1s500ms"']),
    "digits of another script": ('[run]\ndrain = "\u0661\u0660s"', ["not a duration"]),
    "no unit": ('[lease]\nttl = "10"', ["not a duration", '"1m30s"']),
    "part of a second": ('[lease]\nttl = "2500ms"', ["whole seconds; write 3s"]),
    "jobs for job": ('[lease]\n[[jobs]]\nname = "a"', ["toml:2: [[jobs]]: ", "write [[job]]"]),
    "an array for a table": ('[[lease]]\nttl = "2s"', ["toml:1: [[lease]]: write [lease]"]),
    "ttl of nothing": ('[lease]\nttl = "0s"', ["must be at least 1s"]),
    "margin as long as ttl": (
        '[lease]\nttl = "10s"\nmargin = "10s"',
        [':3: [lease] margin = "10s"', "shorter than ttl (10s)"],
    ),
    "renew too long": (
        '[lease]\nttl = "9s"\nrenew = "4s"',
        [':3: [lease] renew = "4s"', "at most ttl / 3 = 3s"],
    ),
    "no time to renew": (
        '[lease]\nttl = "9s"\nmargin = "6s"',
        ["leaves no time to renew", "1.5 x renew (3s)", "raise ttl"],
    ),
    "fleet name": ('[fleet]\nname = "Blue Team"', ["1 to 24 of a-z, 0-9 and -"]),
    "more shards": ("[fleet]\nshards = 3", ["shards = 3", "set shards = 1"]),
    "prefix": ('[fleet]\nprefix = "cron/"', ['must start with "/"']),
    "node with a line break": ('[node]\nid = "a\\nb"', ["without spaces"]),
    "endpoints as text": ('[etcd]\nendpoints = "h:1"', ['must be a list: ["h:1"]']),
    "endpoint without port": ('[etcd]\nendpoints = ["etcd"]', ["etcd: must be host:port"]),
    "endpoint with a port beyond 65535": ('[etcd]\nendpoints = ["h:70000"]', ["h:70000: must be"]),
    "endpoint of another scheme": ('[etcd]\nendpoints = ["ftp://h:1"]', ["unknown scheme"]),
    "endpoint with a password": (
        '[etcd]\nendpoints = ["http://root:pass/word@h:1"]', ["http://***@h:1: must be host:port"]
    ),
    "endpoints alike": ('[etcd]\nendpoints = ["a", "a"]', ["a: must be host:port"]),
    "port of another script": ('[etcd]\nendpoints = ["h:\u0661"]', ["must be host:port"]),
    "endpoint with a path": ('[etcd]\nendpoints = ["http://h:1/x"]', ["h:1/x: must be host:port"]),
    "IPv6 without brackets": ('[etcd]\nendpoints = ["::1:2379"]', ["or [::1]:2379"]),
    "a socket without a path": ('[etcd]\nendpoints = ["unix://"]', ["names no socket"]),
    "a socket's path too long": (
        f'[etcd]\nendpoints = ["unix:///{"x" * 103}"]', ["longer than the 103 bytes"]
    ),
    "a TLS socket without ca": ('[etcd]\nendpoints = ["unixs:///s"]', ["TLS needs [etcd] ca"]),
    "server_name without ca": ('[etcd]\nserver_name = "etcd"', ["needs [etcd] ca"]),
    "https without ca": ('[etcd]\nendpoints = ["https://h:1"]', ["TLS needs [etcd] ca"]),
    "user without password": ('[etcd]\nuser = "u"', ["needs [etcd] password_file"]),
    "a folder for a file": ('[etcd]\nca = "."', ['[etcd] ca = ".": ', "is not a file"]),
    "a folder for a secret": (
        '[http]\nlisten = "127.0.0.1:80"\ntoken_file = "."', ["token_file", "is not a file"]
    ),
    "a path of two lines": ('[etcd]\nca = "a\\nb\\u001b"', ["/a\\nb\\x1b: no such file"]),
    "a key of two lines": ('[etcd]\n"a\\nb" = 1', ["[etcd] a\\nb = 1: unknown key"]),
    "no such file": ('[etcd]\nca = "ca.pem"', ["ca.pem: no such file"]),
    "ledger scheme": (
        '[ledger]\nurl = "mysql://u:hunter2@h/x"',
        ['url = "mysql://***@h/x": unknown scheme', "sqlite:///file.db or postgresql://"],
    ),
    "ledger scheme misspelt": ('[ledger]\nurl = "postgressql://h/x"', ["mean postgresql?"]),
    "sqlite with two slashes": ('[ledger]\nurl = "sqlite://x.db"', ["must be sqlite:///file.db"]),
    "sqlite in memory": ('[ledger]\nurl = "sqlite:///:memory:"', ["gone with its process"]),
    "unset variable": (
        '[ledger]\nurl = "postgresql://u:${DB_PASSWORD}@h/x"',
        ["environment variable DB_PASSWORD is not set"],
    ),
    "a url of an unset variable": ('[ledger]\nurl = "${DB}"', ["variable DB is not set"]),
    "variable of no text": ('[etcd]\nendpoints = "${ETCD}"', ["ETCD is not set; write $${"]),
    "yes for true": ('[ledger]\nmigrate = "yes"', ["must be true or false"]),
    "rate": ('[run]\ncatchup_rate = "fast"', ["not a rate", '"10/s"']),
    "module": ('[jobs]\nmodules = ["a/b.py"]', ['"pkg.mod"']),
    "impossible schedule": (
        JOB + 'cron = "0 0 30 2 *"\n' + RUNS,
        [':3: [[job]] "digest" cron = "0 0 30 2 *"', "never fires"],
    ),
    "unknown zone": (
        JOB + DAILY + RUNS + 'timezone = "Europe/Warsav"',
        ['timezone = "Europe/Warsav"', "did you mean 'Europe/Warsaw'?"],
    ),
    "zone of an interval": (
        JOB + 'every = "5s"\ntimezone = "Europe/Paris"\n' + RUNS,
        ["goes with cron only"],
    ),
    "interval too short": (JOB + 'every = "50ms"\n' + RUNS, ["must be at least 100ms"]),
    "time without zone": (JOB + "at = 2030-01-01T09:00:00\n" + RUNS, ["a time with its zone"]),
    "a zone without a cron": (
        JOB + 'every = "5s"\nat = 2030-01-01T00:00:00Z\ntimezone = "Europe/Paris"\n' + RUNS,
        ["goes with cron only, not with every and at"],
    ),
    "no time at all": (JOB + "at = []\n" + RUNS, [':3: [[job]] "digest" at = []: must not be']),
    "no time beside others": (JOB + DAILY + "at = []\n" + RUNS, ["not be empty; give a time"]),
    "one of several kinds": (JOB + DAILY + 'at = "soon"\n' + RUNS, ['at = "soon"', "its zone"]),
    "a blackout that nobody defined": (
        JOB + DAILY + RUNS + 'blackout = ["frieze"]\n[[blackout]]\nname = "freeze"\ndays = "mon"',
        [':5: [[job]] "digest" blackout', '"frieze": no [[blackout]] has', "did you mean freeze?"],
    ),
    "a blackout where none is defined": (
        JOB + DAILY + RUNS + 'blackout = "freeze"', ["define it: [[blackout]], name and times"],
    ),
    "a blackout without a name": (
        '[[blackout]]\ndays = "mon"', [":1: [[blackout]] number 1 name: is missing; a blackout"],
    ),
    "a named blackout without a time": (
        '[[blackout]]\nname = "x"\ntimezone = "UTC"', [":1: [[blackout]] number 1: says no time"],
    ),
    "blackouts of one name": (
        2 * '[[blackout]]\nname = "x"\ndays = "mon"\n', [":5:", "another blackout has this name"],
    ),
    "a wrong blackout that is used": (
        '[[blackout]]\nname = "x"\ndays = "fry"\n' + JOB + DAILY + RUNS + 'blackout = "x"',
        [":3: [[blackout]] number 1 days = \"fry\": day-of-week 'FRY'"],
    ),
    "unknown key of a blackout": (
        '[[blackout]]\nname = "x"\ndays = "mon"\nregoin = "BY"', ["did you mean region?"],
    ),
    "blackout as a section": ('[blackout]\nname = "x"', ["must be written [[blackout]]"]),
    "a number for a blackout": (JOB + DAILY + RUNS + "blackout = [3]", ["must be a table"]),
    "one of several expressions": (
        JOB + 'cron = ["0 9 * * *", "0 22-2 * * *"]\n' + RUNS,
        [':3: [[job]] "digest" cron', '"0 22-2 * * *": hour', "write 22-23,0-2"],
    ),
    "no expressions": (JOB + "cron = []\n" + RUNS, ["cron", "must not be empty"]),
    "a number for an expression": (JOB + "cron = 5\n" + RUNS, ["cron = 5", "must be text"]),
    "a number among expressions": (JOB + 'cron = ["@daily", 5]\n' + RUNS, ["must be text"]),
    "several times, one bad": (JOB + 'at = ["2030-01-01T09:00Z", "soon"]\n' + RUNS, ["its zone"]),
    "hash": (JOB + 'cron = "H(70-80) * * * *"\n' + RUNS, ["minute 'H(70-80)'", "not in 0-59"]),
    "second": (JOB + 'cron = "60 * * * * *"\n' + RUNS, ["second '60'", "not in 0-59"]),
    "dst_gap": (JOB + DAILY + RUNS + 'dst_gap = "skp"', ["must be run or skip", "mean skip?"]),
    "dst_fold": (JOB + DAILY + RUNS + 'dst_fold = "both"', ["must be once or twice"]),
    "dst_fold of an interval": (
        JOB + 'every = "5s"\ndst_fold = "once"\n' + RUNS,
        ["dst_fold", "goes with cron only, not with every"],
    ),
    "jitter": (JOB + DAILY + RUNS + 'jitter = "soon"', ["jitter", "duration"]),
    "jitter beyond start_within": (
        JOB + DAILY + RUNS + 'jitter = "5m"\nstart_within = "5m"',
        ['jitter = "5m"', "must be shorter than start_within"],
    ),
    "blackout without a time": (JOB + DAILY + RUNS + "blackout = {}", ["says no time; give from"]),
    "half a freeze": (JOB + DAILY + RUNS + 'blackout = { from = "09:00" }', ["give both"]),
    "freeze backwards": (
        JOB + DAILY + RUNS + 'blackout = { from = "2026-12-02T00:00Z", to = "2026-12-01T00:00Z" }',
        [":5:", "to must be later than from"],
    ),
    "freeze without zone": (
        JOB + DAILY + RUNS + 'blackout = { from = "2026-12-02T00:00", to = "2026-12-03T00:00" }',
        ['from = "2026-12-02T00:00": must be', "a time with its zone"],
    ),
    "hours and an instant": (
        JOB + DAILY + RUNS + 'blackout = { from = "09:00", to = "2026-12-01T00:00Z" }', ["alike"],
    ),
    "a day that begins at its end": (
        JOB + DAILY + RUNS + 'blackout = { from = "24:00", to = "06:00" }', ['from = "24:00":'],
    ),
    "no hours": (JOB + DAILY + RUNS + 'blackout = { from = "09:00", to = "09:00" }', ["one time"]),
    "days of a blackout": (
        JOB + DAILY + RUNS + 'blackout = [{ days = "mon" }, { days = ["tue", "fry"] }]',
        ["number 2: days = [\"tue\", \"fry\"]: day-of-week 'FRY'"],
    ),
    "cron without duration": (
        JOB + DAILY + RUNS + 'blackout = { cron = "0 2 * * *" }', ["needs a duration"],
    ),
    "duration of days": (
        JOB + DAILY + RUNS + 'blackout = { days = "mon", duration = "2h" }',
        ["duration: does not go with days"],
    ),
    "country": (JOB + DAILY + RUNS + 'blackout = { holidays = "XX" }', ["no such country"]),
    "region": (
        JOB + DAILY + RUNS + 'blackout = { holidays = "DE", region = "XX" }', ["known: BB, BE"],
    ),
    "zone of a blackout": (
        JOB + DAILY + RUNS + 'blackout = { days = "mon", timezone = "Europe/Warsav" }',
        ["blackout", "did you mean 'Europe/Warsaw'?"],
    ),
    "anchor of cron": (
        JOB + DAILY + RUNS + "anchor = 2030-01-01T09:00:00Z",
        ["anchor", "goes with every only, not with cron"],
    ),
    "anchor": (JOB + 'every = "5s"\nanchor = "noon"\n' + RUNS, ["anchor", "a time with its zone"]),
    "start": (JOB + DAILY + RUNS + 'start = "2030-01-01"', ["start", "a time with its zone"]),
    "end before start": (
        JOB + DAILY + RUNS + "start = 2030-01-02T00:00:00Z\nend = 2030-01-01T00:00:00Z",
        ["end must be later than start"],
    ),
    "nothing from start to end": (
        JOB + DAILY + RUNS + "start = 2030-01-01T10:00:00Z\nend = 2030-01-02T09:00:00Z",
        ["never fires: there is no slot from start to end"],
    ),
    "start of a time": (
        JOB + "at = 2030-01-01T09:00:00Z\nstart = 2030-01-01T00:00:00Z\n" + RUNS,
        ["goes with cron and every, not with at"],
    ),
    "no schedule": (JOB + RUNS, ["has no schedule; give one of cron, every, at"]),
    "nothing to run": (JOB + DAILY, ["has no work; give one of command, shell, python, url"]),
    "url and shell": (JOB + DAILY + RUNS + 'url = "http://h/"', ["has shell and url; keep one"]),
    "url of another scheme": (JOB + DAILY + 'url = "ftp://h/"', ["http:// or https:// URL"]),
    "url without a host": (JOB + DAILY + 'url = "http:///x"', ["http:// or https:// URL"]),
    "url with a port too far": (JOB + DAILY + 'url = "http://h:70000"', ["https:// URL"]),
    "url with a space": (JOB + DAILY + 'url = "http://h/a b"', ["other than ASCII with %"]),
    "url with a word to fill in": (
        JOB + DAILY + 'url = "http://h/${TOKEN}"', ["must hold no braces", "write %7B and %7D"]
    ),
    "url with a password": (
        JOB + DAILY + 'url = "http://u:hunter2@h/"',
        ['url = "http://***@h/": must hold no password', "Authorization"],
    ),
    "url run inline": (JOB + DAILY + URL + 'isolation = "inline"', ["inline is for python jobs"]),
    "retry_on of a url": (
        JOB + DAILY + URL + 'retries = 1\nretry_on = ["E"]', ["a program has retry_exit_codes"]
    ),
    "method in small letters": (JOB + DAILY + URL + 'method = "post"', ["must be GET or HEAD"]),
    "method without url": (JOB + DAILY + RUNS + 'method = "GET"', ["goes with url; leave it out"]),
    "body of a GET": (JOB + DAILY + URL + 'method = "GET"\nbody = "x"', ["a GET has none"]),
    "status as text": (JOB + DAILY + URL + 'expected_status = ["2xx"]', ["a whole number"]),
    "status of no answer": (JOB + DAILY + URL + "expected_status = [100]", ["be at least 200"]),
    "redirects counted": (JOB + DAILY + URL + "follow_redirects = 3", ["must be true or false"]),
    "ca of plain http": (
        JOB + DAILY + 'url = "http://h/"\nca = "cron-leader.toml"', ["goes with an https:// URL"]
    ),
    "ca that is not there": (JOB + DAILY + URL + 'ca = "ca.pem"', ["ca.pem: no such file"]),
    "cert without key": (JOB + DAILY + URL + 'cert = "cron-leader.toml"', ["needs key as well"]),
    "key without cert": (JOB + DAILY + URL + 'key = "cron-leader.toml"', ["needs cert as well"]),
    "header with a bad name": (JOB + DAILY + URL + 'headers = { "A B" = "" }', ["is no name of a"]),
    "header that is ours": (
        JOB + DAILY + URL + 'headers = { Idempotency-Key = "x" }', ["is set by cron-leader"]
    ),
    "header twice": (JOB + DAILY + URL + 'headers = { A = "x", a = "y" }', ["a is there twice"]),
    "header of two lines": (
        JOB + DAILY + URL + 'headers = { A = "x\\ny" }', ["headers: A must be printable ASCII"]
    ),
    "header as a number": (JOB + DAILY + URL + "headers = { A = 1 }", ['or { file = "path" }']),
    "header file not there": (
        JOB + DAILY + URL + 'headers = { A = { file = "token" } }', ["token: no such file"]
    ),
    "header from a variable not set": (
        JOB + DAILY + URL + 'headers = { A = "${TOKEN}" }', ["variable TOKEN is not set"]
    ),
    "command as text": (JOB + DAILY + 'command = "ls"', ['must be a list: ["ls"]']),
    "empty command": (JOB + DAILY + "command = []", ["must not be empty"]),
    "python target": (JOB + DAILY + 'python = "pkg.mod"', ['must be "pkg.mod:function"']),
    "overlap": (JOB + DAILY + RUNS + 'overlap = "alow"', ["did you mean allow?"]),
    "max_parallel of a job": (
        JOB + DAILY + RUNS + "max_parallel = 2", ['goes with overlap = "queue" or "allow"'],
    ),
    "retries": (JOB + DAILY + RUNS + "retries = -1", ["retries = -1"]),
    "backoff alone": (JOB + DAILY + RUNS + 'backoff = "1s"', ["goes with retries"]),
    "backoff_max": (
        JOB + DAILY + RUNS + 'retries = 1\nbackoff = "2s"\nbackoff_max = "1s"',
        ["must not be longer than backoff_max"],
    ),
    "retry_on of a program": (
        JOB + DAILY + RUNS + 'retries = 1\nretry_on = ["OSError"]', ["is for python jobs"],
    ),
    "retry_on a phrase": (
        JOB + DAILY + RUNS + 'retries = 1\nretry_on = ["no luck"]', ["must be an exception"],
    ),
    "retry_exit_codes of a function": (
        JOB + DAILY + 'python = "a:b"\nretries = 1\nretry_exit_codes = [1]', ["is for programs"],
    ),
    "retry_exit_codes": (
        JOB + DAILY + RUNS + "retries = 1\nretry_exit_codes = [0]", ["retry_exit_codes"],
    ),
    "retry_budget": (JOB + DAILY + RUNS + "retries = 1\nretry_budget = 0", ["retry_budget = 0"]),
    "queue_limit": (JOB + DAILY + RUNS + "queue_limit = 0", ["queue_limit = 0"]),
    "when_full": (JOB + DAILY + RUNS + 'when_full = "wait"', ["must be queue or skip"]),
    "group of a job": (JOB + DAILY + RUNS + 'group = ""', ['group = "": must be 1 to 128 letters']),
    "priority": (JOB + DAILY + RUNS + 'priority = "high"', ["must be a whole number"]),
    "much priority": (JOB + DAILY + RUNS + "priority = 1000001", ["must be at most 1000000"]),
    "group without a bound": (
        '[[group]]\nname = "acme"', [":1: [[group]] number 1 max_parallel: is missing; a group"],
    ),
    "group of no runs": (
        '[[group]]\nname = "acme"\nmax_parallel = 0',
        [":3: [[group]] number 1 max_parallel = 0: must be at least 1"],
    ),
    "unknown key of a group": (
        '[[group]]\nname = "acme"\nmax_parallel = 1\nmax_paralel = 1',
        ["did you mean max_parallel?"],
    ),
    "group twice": (
        2 * '[[group]]\nname = "acme"\nmax_parallel = 1\n', [":5:", "another group has this name"],
    ),
    "group as a section": ('[group]\nname = "acme"', ["must be written [[group]]"]),
    "group as a list": ("group = [3]", ["must be a table"]),
    "catchup": (JOB + DAILY + RUNS + 'catchup = "lastest"', ["did you mean latest?"]),
    "inline with an environment": (
        JOB + DAILY + 'python = "m:f"\nisolation = "inline"\nenv = { A = "b" }',
        ["env: a job of", "has no process of its own; leave it out"],
    ),
    "user": (JOB + DAILY + RUNS + 'user = "a b"', ['must be "user" or "user:group"']),
    "umask": (JOB + DAILY + RUNS + 'umask = "o27"', ['octal digits in quotes, as "027"']),
    "nice": (JOB + DAILY + RUNS + "nice = 20", ["nice = 20: must be at most 19"]),
    "limit of cpu": (JOB + DAILY + RUNS + 'limits = { cpu = "1500ms" }', ["must be whole seconds"]),
    "limit of memory": (JOB + DAILY + RUNS + 'limits = { memory = "1M" }', ['write "512MiB"']),
    "limit of little memory": (
        JOB + DAILY + RUNS + 'limits = { memory = "1MiB" }', ["at least 16MiB"]
    ),
    "limit of files": (JOB + DAILY + RUNS + "limits = { files = 3 }", ["must be at least 16"]),
    "limit of processes": (JOB + DAILY + RUNS + "limits = { processes = 0 }", ["at least 1"]),
    "limit unknown": (JOB + DAILY + RUNS + 'limits = { mem = "1GiB" }', ["did you mean memory?"]),
    "inline command": (JOB + DAILY + RUNS + 'isolation = "inline"', ["is for python jobs"]),
    "user that no system has": (JOB + DAILY + RUNS + 'user = "u\\u0000:g"', ['must be "user" or']),
    "env of a number": (JOB + DAILY + RUNS + "[job.env]\nA = 1", [":6:", "env.A", "in quotes"]),
    "reserved env": (JOB + DAILY + RUNS + 'env = { CRON_LEADER_X = "1" }', ["set by cron-leader"]),
    "job without name": ("[[job]]\n" + DAILY + RUNS, ["[[job]] number 1", "name: is missing"]),
    "job name": ('[[job]]\nname = "a b"\n' + DAILY + RUNS, ["letters, digits and"]),
    "two jobs of one name": (
        2 * (JOB + DAILY + RUNS),
        [':6: [[job]] "digest" name = "digest"', "another job has this name"],
    ),
    "a former name that is still in use": (
        JOB + DAILY + RUNS + JOB.replace("digest", "b") + DAILY + RUNS + 'renamed_from = "digest"',
        ['[[job]] "b" renamed_from = "digest"', "is still the name of a job", "leave it out"],
    ),
    "a former name of its own": (
        JOB + DAILY + RUNS + 'renamed_from = "digest"', ["is still the name of a job"],
    ),
    "a former name of two": (
        JOB + DAILY + RUNS + 'renamed_from = "old"\n'
        + JOB.replace("digest", "b") + DAILY + RUNS + 'renamed_from = "old"',
        ['[[job]] "b" renamed_from = "old"', "another job is renamed from", "keep one"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "parts"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_refused_in_one_line_that_names_place_value_and_rule(
    text: str, parts: list[str]
) -> None:
    line = refusal(text)
    assert "\n" not in line
    assert line.startswith("cron-leader.toml")
    assert not [part for part in parts if part not in line], line


def test_everything_wrong_is_said_at_once_in_the_order_of_the_file() -> None:
    text = '[lease]\nttl = "1x"\nrenw = "1s"\n[ledger]\nurl = "x:y"\n' + JOB + RUNS
    lines = refusal(text).splitlines()
    assert [line.split(": ")[0] for line in lines] == [
        f"cron-leader.toml:{n}" for n in (2, 3, 5, 6)
    ]


def test_a_key_inside_a_multi_line_text_is_not_taken_for_the_key() -> None:
    line = refusal(JOB + 'shell = """\ncron = 1\n"""\ncron = "x"')
    assert line.startswith("cron-leader.toml:6:")


@pytest.mark.parametrize(
    "line",
    [
        '# don\'t say """',
        "# ''' [run]",
        'id = "\'\'\'" # """',
        "id = '#' # '''",
        'id = "\\"#" # """',
        'id = """a"""',
    ],
)
def test_no_quote_in_a_comment_or_a_text_hides_what_follows(line: str) -> None:
    assert ":4: [lease] ttl" in refusal(f"[node]\n{line}\n[lease]\nttl = 5")


def test_lines_are_counted_as_editors_do() -> None:
    assert ":3: [lease]" in refusal("# a\u2028b\x85c\r\n[lease]\r\nttl = 5\r\n")


@pytest.mark.parametrize("value", ["nan", "-inf", "-1", "true", "1e30", "2026-12-01"])
def test_no_cure_is_proposed_that_would_be_refused(value: str) -> None:
    assert refusal(f"[run]\ndrain = {value}").endswith(": must be text in quotes")
    if value != "-1":
        assert refusal(f"[etcd]\nendpoints = {value}").endswith(": must be a list")


def test_no_file_says_init() -> None:
    with pytest.raises(ConfigError, match="cron-leader init"):
        load(None, environ={})


# ------------------------------------------------------------------ what is accepted


def test_an_empty_file_is_a_configuration_with_the_documented_defaults(folder: Path) -> None:
    config = read("")
    assert (config.fleet, config.prefix, config.election) == (
        "default",
        "/cron-leader",
        "default/0",
    )
    assert config.lease == LeaseConfig(10 * S, 10 * S // 3, None)
    assert (config.run.drain_s, config.run.max_parallel) == (30.0, 64)
    assert (config.run.max_clock_skew_s, config.run.catchup_rate) == (5.0, 10.0)
    assert config.etcd.endpoints == ("127.0.0.1:2379",)
    assert config.ledger.url == f"sqlite:///{folder}/cron-leader.db"
    assert config.ledger.migrate
    assert config.jobs == ()


def test_a_job_has_the_documented_defaults() -> None:
    (job,) = read(JOB + DAILY + RUNS).jobs
    assert (job.timeout_s, job.grace_s, job.drain_s) == (3600.0, 10.0, None)
    assert (job.catchup, job.catchup_limit, job.start_within_s) == (Catchup.LATEST, 100, None)
    assert job.delivery is Delivery.AT_MOST_ONCE
    assert job.on_lost_leadership is OnLostLeadership.KILL
    assert job.isolation is Isolation.PROCESS


def test_every_key_of_a_job_arrives(folder: Path) -> None:
    text = JOB + 'every = "90s"\npython = "pkg.mod:func"\ntimeout = "2m"\ngrace = "0s"\n'
    text += (
        'drain = "5s"\noverlap = "queue"\nmax_parallel = 3\nqueue_limit = 9\nwhen_full = "skip"\n'
    )
    text += 'catchup = "all"\ncatchup_limit = 7\n'
    text += 'start_within = "1h"\ndelivery = "at-least-once"\non_lost_leadership = "finish"\n'
    text += 'isolation = "process"\ncwd = "work"\nenv = { A = "b" }\n'
    text += 'user = "app:staff"\numask = "027"\nnice = 5\n'
    text += 'limits = { cpu = "1m", memory = "512MiB", files = 64, processes = 9 }\n'
    (job,) = read(text).jobs
    assert job.schedule == Every(timedelta(seconds=90))
    assert job.spec == PythonSpec("pkg.mod:func")
    assert (job.timeout_s, job.grace_s, job.drain_s) == (120.0, 0.0, 5.0)
    assert (job.catchup, job.catchup_limit, job.start_within_s) == (Catchup.ALL, 7, 3600.0)
    assert job.delivery is Delivery.AT_LEAST_ONCE
    assert job.may_finish
    assert (job.overlap, job.max_parallel) == (Overlap.QUEUE, 3)
    assert (job.queue_limit, job.when_full) == (9, WhenFull.SKIP)
    assert job.isolation is Isolation.PROCESS
    assert (job.user, job.umask, job.nice) == ("app:staff", 0o27, 5)
    assert job.limits == Limits(cpu_s=60, memory=512 << 20, files=64, processes=9)
    assert (job.cwd, job.env) == (str(folder / "work"), {"A": "b"})


def test_the_three_kinds_of_schedule_and_of_work() -> None:
    text = JOB + 'cron = " 0  9 * * * "\ntimezone = "Europe/Paris"\ncommand = ["ls", "-l"]\n'
    text += '[[job]]\nname = "b"\nat = 2030-01-01T10:00:00+01:00\nshell = "ls | wc"\n'
    text += '[[job]]\nname = "c"\nat = "2030-01-01T09:00:00Z"\nshell = ":"\n'
    first, second, third = read(text).jobs
    assert first.schedule == Cron("0 9 * * *", "Europe/Paris")
    assert first.spec == CommandSpec(("ls", "-l"))
    assert second.schedule == third.schedule == At(datetime(2030, 1, 1, 9, tzinfo=UTC))
    assert second.spec == ShellSpec("ls | wc")


def test_every_key_of_a_request_arrives(folder: Path) -> None:
    (folder / "token").write_text("t")
    text = JOB + DAILY + 'url = "https://h:8/x?y=1"\nmethod = "PUT"\nbody = \'{"at": "{job}"}\'\n'
    text += 'headers = { X-A = "${A}", Authorization = { file = "token" } }\n'
    text += "expected_status = [200, 409]\nfollow_redirects = true\n"
    text += 'ca = "token"\ncert = "token"\nkey = "token"\n'
    text += (
        '[[job]]\nname = "b"\n' + DAILY + URL + '[[job]]\nname = "c"\n' + DAILY + URL + 'body = "x"'
    )
    whole, get, post = read(text, A="secret").jobs
    file = str(folder / "token")
    assert whole.spec == HttpSpec(
        url="https://h:8/x?y=1",
        method="PUT",
        headers=(("X-A", "secret"),),
        header_files=(("Authorization", file),),
        body='{"at": "{job}"}',
        expected_status=(200, 409),
        follow_redirects=True,
        ca=file,
        cert=file,
        key=file,
    )
    assert (get.spec, post.spec) == (
        HttpSpec("https://h/"),
        HttpSpec("https://h/", method="POST", body="x"),
    )


def test_the_value_of_a_header_is_in_no_message() -> None:
    assert "hunter2" not in refusal(JOB + DAILY + URL + 'headers = { A = "hunter2\\n" }')


def test_groups_and_priorities_arrive_and_a_group_needs_no_table() -> None:
    text = '[[group]]\nname = "acme"\nmax_parallel = 3\n'
    text += JOB + DAILY + RUNS + 'group = "acme"\npriority = -5\n'
    text += '[[job]]\nname = "b"\ngroup = "other"\n' + DAILY + RUNS
    config = read(text)
    assert config.groups == {"acme": 3}
    assert [(job.group, job.priority) for job in config.jobs] == [("acme", -5), ("other", 0)]
    assert read(text.replace("= 3", "= 4")).digest != config.digest


def test_every_key_of_retries_arrives() -> None:
    keys = 'retries = 3\nbackoff = "2s"\nbackoff_max = "1m"\nretry_budget = 9\n'
    text = JOB + DAILY + RUNS + keys + "retry_exit_codes = [75, 143]\n"
    text += '[[job]]\nname = "b"\n' + DAILY + 'python = "a:b"\nretries = 1\nretry_on = ["E"]\n'
    program, function = read(text).jobs
    assert (program.retries, program.backoff_s, program.backoff_max_s) == (3, 2.0, 60.0)
    assert (program.retry_exit_codes, program.retry_budget) == ((75, 143), 9)
    assert (function.retry_on, function.backoff_s) == (("E",), 1.0)


# what the table says | the digest of the schedule
SCHEDULES = {
    'cron = "@daily"\nevery = "1h"\nat = "2030-01-01T09:00:00Z"': (
        "at 2030-01-01T09:00:00+00:00 | cron 0 0 * * * UTC"
        " | every 3600000000us from 1970-01-01T00:00:00+00:00"
    ),
    'every = "1h"\nat = 2030-01-01T09:00:00Z\nend = 2029-01-01T00:00:00Z': (
        "at 2030-01-01T09:00:00+00:00 | every 3600000000us from 1970-01-01T00:00:00+00:00"
        " to 2029-01-01T00:00:00+00:00"
    ),
    'cron = "@daily"\nend = 2030-01-03T00:00:00Z': (
        "cron 0 0 * * * UTC to 2030-01-03T00:00:00+00:00"
    ),
    'cron = ["@daily", "30 12 * * *"]': "cron 0 0 * * * UTC | cron 30 12 * * * UTC",
    'cron = ["@daily"]': "cron 0 0 * * * UTC",
    'cron = "H H * * *"': "cron 6 5 * * * UTC",
    'cron = "*/10 * * * * *"': "cron */10 * * * * * UTC",
    'cron = "@daily"\ndst_gap = "skip"\ndst_fold = "twice"': (
        "cron 0 0 * * * UTC gap skip fold twice"
    ),
    'every = "1h"\nanchor = 2030-01-01T00:30:00Z': "every 3600000000us from "
    "2030-01-01T00:30:00+00:00",
    'at = ["2030-01-01T09:00Z", 2030-01-02T09:00:00Z]': (
        "at 2030-01-01T09:00:00+00:00 | at 2030-01-02T09:00:00+00:00"
    ),
    'every = "1h"\nstart = 2030-01-01T00:30:00Z\nend = "2030-01-03T00:00Z"': (
        "every 3600000000us from 1970-01-01T00:00:00+00:00"
        " from 2030-01-01T00:30:00+00:00 to 2030-01-03T00:00:00+00:00"
    ),
}


NAMED = """
[[blackout]]
name = "freeze"
from = 2026-12-20T00:00:00Z
to = 2027-01-02T00:00:00Z

[[blackout]]
name = "office"
days = "mon-fri"
from = "09:00"
to = "17:00"
"""


def test_a_blackout_is_defined_once_and_used_by_name_beside_those_in_line() -> None:
    named = 'timezone = "Europe/Berlin"\nblackout = ["freeze", { days = "sun" }, "office"]\n'
    inline = 'timezone = "Europe/Berlin"\nblackout = [\n'
    inline += '{ from = "2026-12-20T00:00:00Z", to = "2027-01-02T00:00:00Z" }, { days = "sun" },\n'
    inline += '{ days = "mon-fri", from = "09:00", to = "17:00" }]\n'
    used, meant = read(JOB + DAILY + RUNS + named + NAMED), read(JOB + DAILY + RUNS + inline)
    assert used.jobs[0].blackout is not None
    assert meant.jobs[0].blackout is not None
    at = datetime(2026, 11, 30, tzinfo=UTC)
    for hours in range(0, 24 * 40, 3):
        then = at + timedelta(hours=hours)
        assert used.jobs[0].blackout.until(then) == meant.jobs[0].blackout.until(then)
    (one,) = read(JOB + DAILY + RUNS + 'blackout = "freeze"\n' + NAMED).jobs
    assert one.blackout is not None
    assert read(NAMED).digest != read("").digest


def test_a_day_may_end_at_24_00() -> None:
    windows = ('{ days = "fri", from = "18:00", to = "24:00" }', '{ from = "18:00", to = "00:00" }')
    late, later = datetime(2026, 12, 4, 23, 59, tzinfo=UTC), datetime(2026, 12, 5, tzinfo=UTC)
    for window in windows:
        (job,) = read(JOB + DAILY + RUNS + "blackout = " + window).jobs
        assert job.blackout is not None
        assert (job.blackout.until(late), job.blackout.until(later)) == (later, None)


def test_a_year_of_which_not_all_holidays_are_known_is_no_warning() -> None:
    (job,) = read(JOB + DAILY + RUNS + 'blackout = { holidays = "IN" }').jobs
    assert job.blackout is not None
    assert job.blackout.until(datetime(2060, 1, 26, 12, tzinfo=UTC)) is not None


@pytest.mark.parametrize(
    ("region", "day", "free"),
    [
        ('region = "BY"', date(2026, 6, 4), True),  # Corpus Christi
        ('region = "BE"', date(2026, 6, 4), False),
        ("", date(2026, 6, 4), False),
        ('region = "BY"', date(2026, 10, 3), True),  # of the whole country
    ],
)
def test_a_region_has_its_own_holidays_beside_the_countrys(
    region: str, day: date, free: bool
) -> None:
    window = f'holidays = "DE", timezone = "Europe/Berlin"{", " if region else ""}{region}'
    (job,) = read(f"{JOB}{DAILY}{RUNS}blackout = {{ {window} }}").jobs
    noon = datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
    assert job.blackout is not None
    assert (job.blackout.until(noon) is not None) == free


def test_holidays_without_the_library_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "holidays", None)
    _public_holidays.cache_clear()
    with pytest.raises(ConfigError, match=r'is not installed: pip install "cron-leader\[holidays'):
        read(JOB + DAILY + RUNS + 'blackout = { holidays = "DE" }')


def test_a_job_of_code_uses_the_blackouts_of_the_file() -> None:
    table = {"name": "x", "every": "5s", "python": "a.b:c", "blackout": ["freeze"]}
    named = read(NAMED).blackouts
    (job,) = build_jobs([table], where="@job", base=Path(), blackouts=named)
    assert job.blackout is not None
    with pytest.raises(ConfigError, match="no \\[\\[blackout\\]\\] has this name"):
        build_jobs([table], where="@job", base=Path())


@pytest.mark.parametrize(("keys", "digest"), SCHEDULES.items())
def test_the_keys_of_a_schedule_are_read(keys: str, digest: str) -> None:
    (job,) = read(f"{JOB}{keys}\n{RUNS}").jobs
    assert job.schedule.digest == digest


def test_a_hash_depends_on_the_fleet_and_the_job() -> None:
    text = JOB + 'cron = "H H * * *"\n' + RUNS
    other = text.replace("digest", "other")
    (here,), (there,) = read(text).jobs, read('[fleet]\nname = "east"\n' + text).jobs
    (another,) = read(other).jobs
    assert len({job.schedule.digest for job in (here, there, another)}) == 3


def test_paths_are_relative_to_the_file(folder: Path) -> None:
    sub = folder / "etc"
    sub.mkdir()
    (sub / "pw").write_text("secret\nignored\n")
    (sub / "c.toml").write_text(
        '[etcd]\nuser = "u"\npassword_file = "pw"\n[ledger]\nurl = "sqlite:///x/l.db"'
    )
    config = load(Path("etc/c.toml"), environ={})
    assert config.etcd.password == "secret"
    assert config.ledger.url == f"sqlite:///{sub}/x/l.db"
    assert config.path == sub / "c.toml"


def test_an_absolute_sqlite_path_stays(folder: Path) -> None:
    assert read('[ledger]\nurl = "sqlite:////var/l.db"').ledger.url == "sqlite:////var/l.db"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("etcd-1.example:2379", "etcd-1.example:2379"),
        ("http://localhost:2379/", "localhost:2379"),
        ("[::1]:2379", "[::1]:2379"),
        ("http://[fe80::1]:2379", "[fe80::1]:2379"),
        ("unix:///run/etcd.sock", "unix:///run/etcd.sock"),
        ("unix://etcd.sock", "unix://{folder}/etcd.sock"),
    ],
)
def test_an_endpoint_may_be_written_in_many_ways(folder: Path, written: str, meant: str) -> None:
    config = read(f'[etcd]\nendpoints = ["{written}"]')
    assert config.etcd.endpoints == (meant.format(folder=folder),)


def test_with_a_ca_the_schemes_are_those_of_tls(folder: Path) -> None:
    (folder / "ca.pem").write_text("")
    text = '[etcd]\nca = "ca.pem"\nserver_name = "etcd"\nendpoints = '
    config = read(f'{text}["https://h:1", "h:2", "unixs:///s"]')
    assert config.etcd.endpoints == ("h:1", "h:2", "unix:///s")
    assert config.etcd.server_name == "etcd"
    assert "write unixs:// or take ca out" in refusal(f'{text}["unix:///s"]')


# ------------------------------------------------------------------ environment


def test_environment_beats_file() -> None:
    config = read(
        '[lease]\nttl = "10s"\n[etcd]\nendpoints = ["a:1"]\n[run]\nmax_parallel = 3',
        CRON_LEADER_LEASE_TTL="20s",
        CRON_LEADER_ETCD_ENDPOINTS="b:1, http://c:2",
        CRON_LEADER_RUN_MAX_PARALLEL="9",
        CRON_LEADER_LEDGER_MIGRATE="false",
        CRON_LEADER_JOBS_MODULES="x,y.z",
    )
    assert config.lease.ttl_ns == 20 * S
    assert config.etcd.endpoints == ("b:1", "c:2")
    assert config.run.max_parallel == 9
    assert not config.ledger.migrate
    assert config.modules == ("x", "y.z")


def test_a_bad_variable_is_named_instead_of_the_file() -> None:
    line = refusal("", CRON_LEADER_LEASE_TTL="soon")
    assert line.startswith('$CRON_LEADER_LEASE_TTL = "soon": not a duration')


def test_a_misspelt_variable_is_refused_and_foreign_ones_are_let_pass() -> None:
    assert "did you mean $CRON_LEADER_LEASE_TTL?" in refusal("", CRON_LEADER_LEASE_TTLS="5s")
    read("", CRON_LEADER_ETCD_SERVICE_HOST="x", CRON_LEADER_ETCD_PORT="tcp://x:1")


def test_what_a_run_is_given_is_not_read_as_configuration() -> None:
    read("", CRON_LEADER_RUN_DEADLINE="2030-01-01T00:00:00Z", CRON_LEADER_NODE="x")


@pytest.mark.parametrize(
    ("option", "environ", "expected"),
    [
        ("o", {"NODE_ID": "e", "CRON_LEADER_NODE_ID": "v"}, "o"),
        (None, {"NODE_ID": "e", "CRON_LEADER_NODE_ID": "v"}, "e"),
        (None, {"CRON_LEADER_NODE_ID": "v"}, "v"),
        (None, {}, "f"),
    ],
)
def test_the_node_id_is_option_then_environment_then_file(
    option: str | None, environ: dict[str, str], expected: str
) -> None:
    path = Path("c.toml")
    path.write_text('[node]\nid = "f"')
    assert load(path, environ=environ, node_id=option).node_id == expected


def test_a_node_without_a_name_is_host_and_pid() -> None:
    import os
    import socket

    assert read("").node_id == f"{socket.gethostname()}-{os.getpid()}"


def test_a_bad_node_id_is_blamed_on_where_it_came_from() -> None:
    assert 'NODE_ID = "a b"' in refusal("", NODE_ID="a b")


def test_what_is_no_utf8_is_refused_where_a_ledger_is_to_hold_it_or_to_be_found_by_it() -> None:
    not_utf8 = "n\udcff"  # as the environment gives a byte that is none
    assert "characters of UTF-8" in refusal("", NODE_ID=not_utf8)
    assert "start with" in refusal("", CRON_LEADER_FLEET_PREFIX=f"/{not_utf8}")
    for url in ("sqlite:///{}.db", "postgresql://u:{}@h/d"):
        said = refusal("", CRON_LEADER_LEDGER_URL=url.format(not_utf8))
        assert said.endswith("must be text in UTF-8")


def test_the_file_is_named_by_option_then_variable_then_working_directory(folder: Path) -> None:
    for name in ("o.toml", "v.toml", "cron-leader.toml"):
        Path(name).write_text(f'[fleet]\nname = "{name[0]}"')
    environ = {"CRON_LEADER_CONFIG": "v.toml"}
    assert load(Path("o.toml"), environ=environ).fleet == "o"
    assert load(None, environ=environ).fleet == "v"
    assert load(None, environ={}).fleet == "c"


# ------------------------------------------------------------------ secrets


def test_variables_are_filled_in_where_secrets_stand_and_nowhere_else() -> None:
    text = '[ledger]\nurl = "postgresql://u:${PW}@h/x"\n' + JOB + DAILY
    text += 'shell = \'echo ${PW}\'\nenv = { A = "${PW}", B = "$${PW}" }'
    config = read(text, PW="hunter2")
    assert config.ledger.url == "postgresql://u:hunter2@h/x"
    assert config.jobs[0].env == {"A": "hunter2", "B": "${PW}"}
    assert config.jobs[0].spec == ShellSpec("echo ${PW}")


def test_secrets_are_not_in_the_repr_nor_in_the_digest(folder: Path) -> None:
    (folder / "pw").write_text("sesame")
    text = '[etcd]\nuser = "u"\npassword_file = "pw"\n[ledger]\nurl = "postgresql://u:${PW}@h/x"\n'
    text += JOB + DAILY + RUNS + 'env = { A = "${PW}" }'
    one, other = read(text, PW="hunter2"), read(text, PW="swordfish")
    assert "sesame" not in repr(one)
    assert "hunter2" not in repr(one)
    assert one.digest == other.digest


def test_the_digest_is_of_the_meaning_shared_by_a_fleet_not_of_the_text() -> None:
    digest = read('[lease]\nttl = "10s"').digest
    assert read('# note\n[lease]\nttl   = "10s"\n[node]\nid = "x"').digest == digest
    assert read('[lease]\nttl = "11s"').digest != digest
    assert read("", CRON_LEADER_LEASE_TTL="10s").digest == digest


# ------------------------------------------------------------------ jobs from code


def test_jobs_defined_in_code_pass_the_same_validation() -> None:
    table = {"name": "x", "cron": "0 9 * * *", "python": "a.b:c", "timezone": None, "timeout": "5s"}
    (job,) = build_jobs([table], where="@job", base=Path())
    assert (job.name, job.timeout_s) == ("x", 5.0)
    with pytest.raises(ConfigError, match=r'@job: \[\[job\]\] "x" timeout = "5": not a duration'):
        build_jobs([table | {"timeout": "5"}], where="@job", base=Path())


def test_merging_jobs_refuses_a_name_that_is_taken_and_changes_the_digest() -> None:
    config = read(JOB + DAILY + RUNS)
    (more,) = build_jobs(
        [{"name": "x", "every": "5s", "python": "a.b:c"}], where="@job", base=Path()
    )
    merged = merge_jobs(config, [more])
    assert [job.name for job in merged.jobs] == ["digest", "x"]
    assert merged.digest != config.digest
    assert merge_jobs(config, []) == config
    with pytest.raises(ConfigError, match='job "digest" is defined twice'):
        merge_jobs(config, config.jobs)


@pytest.mark.parametrize(
    ("listed", "of_code"),
    [("", 'renamed_from = "digest"'), ('renamed_from = "x"', ""), 2 * ('renamed_from = "old"',)],
)
def test_merging_jobs_refuses_a_former_name_that_is_taken(listed: str, of_code: str) -> None:
    config = read(JOB + DAILY + RUNS + listed)
    table = {"name": "x", "every": "5s", "python": "a.b:c"} | tomllib.loads(of_code)
    (more,) = build_jobs([table], where="@job", base=Path())
    with pytest.raises(ConfigError, match="a job has one history: leave it out"):
        merge_jobs(config, [more])


# ------------------------------------------------------------------ the margin

E_NS = 4 * S // 3
"""What a server's minimum TTL of 2 s says of its election timeout, at etcd's defaults."""


def lease(ttl: float, renew: float | None = None, margin: float | None = None) -> LeaseConfig:
    ttl_ns = int(ttl * S)
    return LeaseConfig(
        ttl_ns,
        ttl_ns // 3 if renew is None else int(renew * S),
        None if margin is None else int(margin * S),
    )


def test_the_margin_is_the_election_timeout_and_drift_or_a_fifth_of_the_ttl() -> None:
    assert check_margin(lease(5), E_NS) == E_NS + S // 5
    assert check_margin(lease(60), E_NS) == 12 * S
    assert check_margin(lease(10, margin=3), E_NS) == 3 * S


def test_a_ttl_that_does_not_fit_is_refused_with_the_smallest_that_does() -> None:
    with pytest.raises(ConfigError, match="the smallest ttl that fits is 4s"):
        check_margin(lease(3), E_NS)
    check_margin(lease(4), E_NS)


@pytest.mark.parametrize("renew", [None, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("margin", [None, 2.0])
@pytest.mark.parametrize("timeout", [0.5, 4 / 3, 5.0])
def test_the_smallest_ttl_named_fits_and_one_second_less_does_not(
    renew: float | None, margin: float | None, timeout: float
) -> None:
    if margin is not None and margin < timeout + 0.2:
        return

    def fits(ttl: int) -> bool:
        if renew is not None and renew > ttl / 3:
            return False
        try:
            check_margin(lease(ttl, renew, margin), int(timeout * S))
        except ConfigError:
            return False
        return True

    smallest = next(ttl for ttl in range(1, 100) if fits(ttl))
    tight = lease(1, renew, margin)
    with pytest.raises(ConfigError, match=f"the smallest ttl that fits is {smallest}s"):
        check_margin(tight, int(timeout * S))


def test_a_margin_below_the_election_timeout_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"must be at least 1\.53s"):
        check_margin(lease(10, margin=1), E_NS)


# ------------------------------------------------------------------ units


@pytest.mark.parametrize(
    ("text", "ns"),
    [("250ms", S // 4), ("10s", 10 * S), ("1m30s", 90 * S), ("2h", 7200 * S), ("7d", 604800 * S)],
)
def test_durations_are_read_and_shown_alike(text: str, ns: int) -> None:
    assert parse_duration(text) == ns
    assert show_duration(ns) == text


@pytest.mark.parametrize("text", ["", "10", "s", "1s1m", "-1s", "1.5s", "1 s", "1S", "9999999d"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_duration(text)


def test_rates_are_per_second() -> None:
    assert (parse_rate("10/s"), parse_rate("30/m"), parse_rate("0.5/s")) == (10.0, 0.5, 0.5)
    with pytest.raises(ValueError):
        parse_rate("0/s")
