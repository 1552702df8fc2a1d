"""Each key of the configuration has a value that is taken and has an effect, and one that is
refused in words that name it. A key without both fails here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

import pytest

from cron_leader.config import Config, load, schema
from cron_leader.errors import ConfigError

CRON, EVERY = 'cron = "0 9 * * *"\n', 'every = "30s"\n'
WORK = {
    "shell": 'shell = ":"\n',
    "python": 'python = "pkg.mod:func"\n',
    "url": 'url = "https://h/x"\n',
}
RETRIES = "retries = 3\n"
HOOK = 'webhook = "http://h/"\n'
FREEZE = 'blackout = { from = "2026-12-20T00:00:00Z", to = "2026-12-27T00:00:00Z" }'


@dataclass(frozen=True, slots=True)
class Sample:
    """good: lines that are taken and change what `base` alone means; bad: lines refused, as `says`.

    base: what they need beside them in their table; names a kind of work, for a job.
    """

    good: str
    bad: str
    says: str
    base: str = ""
    work: str = "shell"


JOB = {
    "name": Sample('name = "digest"', 'name = "a b"', "letters, digits and"),
    "cron": Sample(
        'cron = ["@hourly", "H H * * *"]', 'cron = "0 9 * *"', "4 fields where cron has 5", EVERY
    ),
    "every": Sample('every = "90s"', 'every = "10ms"', "at least 100ms", CRON),
    "at": Sample("at = 2030-01-01T09:00:00Z", 'at = "noon"', "a time with its zone", CRON),
    "timezone": Sample('timezone = "Asia/Tokyo"', 'timezone = "Tokio"', "no such time zone", CRON),
    "anchor": Sample('anchor = "2026-01-01T00:00:07Z"', 'anchor = "x"', "with its zone", EVERY),
    "start": Sample("start = 2030-01-01T00:00:00Z", 'start = "x"', "with its zone", EVERY),
    "end": Sample("end = 2030-01-01T00:00:00Z", "end = 1960-01-01T00:00:00", "its zone", EVERY),
    "dst_gap": Sample('dst_gap = "skip"', 'dst_gap = "jump"', "run or skip", CRON),
    "dst_fold": Sample('dst_fold = "twice"', 'dst_fold = "never"', "once or twice", CRON),
    "command": Sample('command = ["ls", "-l"]', 'command = "ls -l"', "must be a list", work=""),
    "shell": Sample('shell = "ls | wc"', 'shell = " "', "must not be empty", work=""),
    "python": Sample('python = "a.b:c"', 'python = "a.b.c"', '"pkg.mod:function"', work=""),
    "url": Sample('url = "http://h/"', 'url = "h/x"', "http:// or https:// URL", work=""),
    "method": Sample('method = "PUT"', 'method = "put"', "did you mean PUT?", work="url"),
    "headers": Sample('headers = { A = "b" }', "headers = { A = 1 }", "text in quotes", work="url"),
    "body": Sample('body = "{job}"', "body = 3", "must be text", work="url"),
    "expected_status": Sample(
        "expected_status = [200, 409]", "expected_status = [99]", "at least 200", work="url"
    ),
    "follow_redirects": Sample(
        "follow_redirects = true", "follow_redirects = 5", "true or false", work="url"
    ),
    "ca": Sample('ca = "file"', 'ca = "missing"', "no such file", work="url"),
    "cert": Sample(
        'cert = "file"\nkey = "file"', 'cert = "missing"\nkey = "file"', "cert", work="url"
    ),
    "key": Sample('cert = "file"\nkey = "file"', 'cert = "file"\nkey = "x"', "key", work="url"),
    "env": Sample('env = { A = "b" }', 'env = { "a-b" = "c" }', "no name of an environment"),
    "cwd": Sample('cwd = "."', 'cwd = ""', "must not be empty"),
    "user": Sample('user = "app:staff"', 'user = "a:b:c"', '"user" or "user:group"'),
    "umask": Sample('umask = "027"', "umask = 27", "must be text in quotes"),
    "nice": Sample("nice = 5", "nice = -21", "at least -20"),
    "limits": Sample("limits = { files = 64 }", "limits = 64", "must be a table"),
    "timeout": Sample('timeout = "5m"', "timeout = 300", 'write "300s"'),
    "grace": Sample('grace = "0s"', 'grace = "soon"', "not a duration"),
    "drain": Sample('drain = "5s"', 'drain = "-5s"', "not a duration"),
    "overlap": Sample('overlap = "queue"', 'overlap = "que"', "did you mean queue?"),
    "max_parallel": Sample(
        "max_parallel = 3", "max_parallel = 0", "at least 1", 'overlap = "allow"\n'
    ),
    "queue_limit": Sample("queue_limit = 9", "queue_limit = 0", "at least 1"),
    "when_full": Sample('when_full = "skip"', 'when_full = "drop"', "queue or skip"),
    "group": Sample('group = "acme"', 'group = "a b"', "letters, digits and"),
    "priority": Sample("priority = -3", "priority = 1.5", "a whole number"),
    "renamed_from": Sample('renamed_from = "before"', 'renamed_from = "a b"', "letters, digits"),
    "catchup": Sample('catchup = "all"', 'catchup = "al"', "did you mean all?"),
    "catchup_limit": Sample("catchup_limit = 7", "catchup_limit = 0", "at least 1"),
    "start_within": Sample('start_within = "1h"', 'start_within = "never"', "not a duration"),
    "retries": Sample("retries = 1", "retries = 1001", "at most 1000"),
    "backoff": Sample('backoff = "2s"', 'backoff = "0s"', "longer than 0s", RETRIES),
    "backoff_max": Sample('backoff_max = "1m"', 'backoff_max = "1x"', "not a duration", RETRIES),
    "retry_on": Sample('retry_on = ["OSError"]', 'retry_on = ["no!"]', "exc", RETRIES, "python"),
    "retry_exit_codes": Sample(
        "retry_exit_codes = [75]", "retry_exit_codes = [256]", "at most 255", RETRIES
    ),
    "retry_budget": Sample("retry_budget = 9", "retry_budget = 0", "at least 1", RETRIES),
    "jitter": Sample('jitter = "10s"', 'jitter = "10"', "not a duration"),
    "blackout": Sample(FREEZE, "blackout = { }", "says no time"),
    "delivery": Sample('delivery = "at-least-once"', 'delivery = "once"', "mean at-most-once?"),
    "on_lost_leadership": Sample(
        'on_lost_leadership = "finish"', 'on_lost_leadership = "end"', "kill or finish"
    ),
    "isolation": Sample('isolation = "inline"', 'isolation = "thread"', "inline", work="python"),
}

LIMITS = {
    "cpu": Sample('limits.cpu = "10s"', 'limits.cpu = "1500ms"', "whole seconds"),
    "memory": Sample('limits.memory = "1GiB"', 'limits.memory = "1G"', "not a size"),
    "files": Sample("limits.files = 64", "limits.files = 3", "at least 16"),
    "processes": Sample("limits.processes = 9", 'limits.processes = "9"', "whole number"),
}

DAYS = 'days = "mon"\n'
HOLIDAYS = 'holidays = "DE"\n'
BLACKOUT = {
    "name": Sample('name = "other"', 'name = ""', "letters, digits and", DAYS),
    "from": Sample('from = "08:00"', 'from = "8am"', "a time of day", 'to = "17:00"\n' + DAYS),
    "to": Sample('to = "17:00"', 'to = "24:01"', "a time of day", 'from = "09:00"\n' + DAYS),
    "days": Sample('days = ["tue", "wed"]', 'days = "fry"', "day-of-week 'FRY'"),
    "cron": Sample('cron = "0 2 * * *"', 'cron = "0 25 * * *"', "hour", 'duration = "1h"\n'),
    "duration": Sample('duration = "1h"', 'duration = "0s"', "longer than", 'cron = "@daily"\n'),
    "holidays": Sample('holidays = "PL"', 'holidays = "XX"', "no such country"),
    "region": Sample('region = "BY"', 'region = "ZZ"', "known: BB", HOLIDAYS),
    "timezone": Sample('timezone = "Asia/Tokyo"', 'timezone = "Tokio"', "no such time", DAYS),
}

SECTIONS = {
    "node.id": Sample('id = "a"', 'id = "a b"', "without spaces"),
    "fleet.name": Sample('name = "east"', 'name = "East"', "a-z, 0-9 and -"),
    "fleet.prefix": Sample('prefix = "/x"', 'prefix = "/x/"', "must not end with it"),
    "fleet.shards": Sample("shards = 1", "shards = 2", "set shards = 1"),
    "lease.ttl": Sample('ttl = "20s"', 'ttl = "20500ms"', "write 21s"),
    "lease.renew": Sample('renew = "2s"', 'renew = "4s"', "ttl / 3"),
    "lease.margin": Sample('margin = "3s"', 'margin = "9s"', "no time to renew"),
    "run.drain": Sample('drain = "5s"', 'drain = "1"', "not a duration"),
    "run.max_parallel": Sample("max_parallel = 9", "max_parallel = 0", "at least 1"),
    "run.max_clock_skew": Sample('max_clock_skew = "2s"', 'max_clock_skew = "0s"', "longer than"),
    "run.catchup_rate": Sample('catchup_rate = "90/m"', "catchup_rate = 90", "text in quotes"),
    "etcd.endpoints": Sample('endpoints = ["h:1"]', "endpoints = []", "must not be empty"),
    "etcd.ca": Sample('ca = "file"', 'ca = "missing"', "no such file"),
    "etcd.cert": Sample(
        'cert = "file"\nkey = "file"', 'cert = "file"', "needs [etcd] key", 'ca = "file"\n'
    ),
    "etcd.key": Sample(
        'cert = "file"\nkey = "file"', 'key = "file"', "needs [etcd] cert", 'ca = "file"\n'
    ),
    "etcd.server_name": Sample('server_name = "x"', "server_name = 1", "text", 'ca = "file"\n'),
    "etcd.user": Sample(
        'user = "u"\npassword_file = "file"', 'user = "u"', "needs [etcd] password_file"
    ),
    "etcd.password_file": Sample(
        'user = "u"\npassword_file = "file"', 'password_file = "file"', "needs [etcd] user"
    ),
    "ledger.url": Sample('url = "postgresql://h/x"', 'url = "mysql://h/x"', "unknown scheme"),
    "ledger.migrate": Sample("migrate = false", 'migrate = "no"', "true or false"),
    "ledger.ledger_rollback": Sample(
        'ledger_rollback = "skip"', 'ledger_rollback = "skp"', "did you mean skip?"
    ),
    "ledger.retention": Sample('retention = "7d"', 'retention = "5m"', "at least 1h"),
    "ledger.keep": Sample('keep = "off"', "keep = -1", "at least 0"),
    "jobs.modules": Sample('modules = ["a.b"]', 'modules = ["a/b"]', "name of a module"),
    "http.listen": Sample('listen = "127.0.0.1:80"', 'listen = "8080"', "must be host:port"),
    "http.token_file": Sample(
        'token_file = "file"', 'token_file = "missing"', "no such file", 'listen = "h:1"\n'
    ),
}

NOTIFY = {
    "on": Sample('on = ["missed"]', 'on = ["fail"]', "did you mean failure?", HOOK),
    "jobs": Sample('jobs = ["a*"]', 'jobs = "a*"', "must be a list", HOOK),
    "webhook": Sample('webhook = "http://h/"', 'webhook = "h/"', "http:// or https://"),
    "headers": Sample(
        'headers = { A = { file = "file" } }',
        'headers = { A = { file = "missing" } }',
        "no such file",
        HOOK,
    ),
    "command": Sample('command = ["logger"]', "command = []", "must not be empty"),
    "body": Sample('body = "{job}"', 'body = "{jib}"', "{jib} is not known", HOOK),
    "at_most": Sample('at_most = "3/h"', 'at_most = "3"', "no such bound", HOOK),
    "long_after": Sample('long_after = "5m"', 'long_after = "0s"', "longer than 0s", HOOK),
}
NOTIFY["long_after"] = replace(NOTIFY["long_after"], base=HOOK + 'on = ["long"]\n')

GROUP = {
    "name": Sample('name = "b"', 'name = ""', "letters, digits and", "max_parallel = 1\n"),
    "max_parallel": Sample("max_parallel = 2", "max_parallel = 0", "at least 1", 'name = "a"\n'),
}

FENCE_TARGET = {
    "name": Sample('name = "b"', 'name = "B"', "a-z, 0-9", 'url = "sqlite:///b.db"\n'),
    "url": Sample('url = "sqlite:///b.db"', 'url = "b.db"', "unknown scheme", 'name = "a"\n'),
}

MODEL = (
    (JOB, schema.JOB),
    (LIMITS, schema.LIMITS),
    (BLACKOUT, schema.BLACKOUT),
    (NOTIFY, schema.NOTIFY),
    (GROUP, schema.GROUP),
    (FENCE_TARGET, schema.FENCE_TARGET),
    (SECTIONS, {f"{at}.{key}" for at, keys in schema.SECTIONS.items() for key in keys}),
)


@dataclass(frozen=True, slots=True)
class Case:
    """A whole file without the key, with it, and with it wrong. where: how the key is named."""

    without: str
    good: str
    bad: str
    says: str
    where: str


def _job(key: str, sample: Sample) -> Case:
    name = "" if key == "name" else 'name = "j"\n'
    timed = "" if key in {"cron", "every", "at"} or sample.base in {CRON, EVERY} else CRON
    head = "[[job]]\n" + name + timed + WORK.get(sample.work, "") + sample.base
    return Case(head, head + sample.good, head + sample.bad, sample.says, key)


def _table(header: str, key: str, sample: Sample) -> Case:
    named = 'name = "b"\n' if header == "blackout" and key != "name" else ""
    head = f"[[{header}]]\n{named}{sample.base}"
    return Case(head, head + sample.good, head + sample.bad, sample.says, header)


def _section(key: str, sample: Sample) -> Case:
    head = f"[{key.partition('.')[0]}]\n{sample.base}"
    return Case(head, head + sample.good, head + sample.bad, sample.says, key.rpartition(".")[2])


CASES = {
    **{f"job.{key}": _job(key, sample) for key, sample in JOB.items()},
    **{f"job.limits.{key}": _job("limits", sample) for key, sample in LIMITS.items()},
    **{f"blackout.{key}": _table("blackout", key, sample) for key, sample in BLACKOUT.items()},
    **{f"notify.{key}": _table("notify", key, sample) for key, sample in NOTIFY.items()},
    **{f"group.{key}": _table("group", key, sample) for key, sample in GROUP.items()},
    **{f"fence_target.{key}": _table("fence_target", key, s) for key, s in FENCE_TARGET.items()},
    **{key: _section(key, sample) for key, sample in SECTIONS.items()},
}

AS_IT_IS = frozenset({"fleet.shards"})
"""Keys with one value, which is the default."""


@pytest.fixture(autouse=True)
def file() -> None:
    Path("file").write_text("content\n")


def read(text: str) -> Config:
    path = Path("cron-leader.toml")
    path.write_text(text)
    return replace(load(path, environ={}, node_id=None), digest="")


@pytest.mark.parametrize(("samples", "model"), MODEL, ids=lambda value: str(len(value)))
def test_each_key_has_a_good_and_a_bad_value(
    samples: dict[str, Sample], model: dict[str, object]
) -> None:
    assert samples.keys() == set(model)


@pytest.mark.parametrize("key", CASES)
def test_a_good_value_is_taken_and_means_something(key: str) -> None:
    case = CASES[key]
    found = read(case.good)
    try:
        before = read(case.without)
    except ConfigError:
        return  # there is none without it
    if key not in AS_IT_IS:
        assert found != before


@pytest.mark.parametrize("key", CASES)
def test_a_bad_value_is_refused_by_its_name_and_its_rule(key: str) -> None:
    case = CASES[key]
    with pytest.raises(ConfigError) as refused:
        read(case.bad)
    text = str(refused.value)
    assert text.startswith("cron-leader.toml:"), text
    assert case.says in text
    assert case.where in text


ODD = (
    "-1",
    "nan",
    "99999999999999999999999",
    "0x" + 4000 * "9",
    "true",
    '"\\u0000"',
    f'"{"x" * 5000}"',
    '"http://[::1"',
    '"1ms"',
    "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59-14:00",
    "07:32:00",
    "[[]]",
    '["a", 1]',
    "{ a = { b = 1 } }",
    '{ days = "L" }',
)
"""Values that are good for few keys, and each of which some reader has stumbled over."""


def files_with(value: str) -> Iterator[str]:
    """Each key with that value once: those of tables that are lists in one file, for each of them
    has a table of its own; of each section one key a file."""
    listed = [key for key in CASES if key not in SECTIONS]
    names = [key[4:] if key.startswith("job.limits") else key.rpartition(".")[2] for key in listed]
    tables = zip(listed, names, strict=True)
    yield "".join(f"{CASES[key].without}{name} = {value}\n" for key, name in tables)
    columns = (
        [f"[{at}]\n{key} = {value}\n" for key in keys] for at, keys in schema.SECTIONS.items()
    )
    yield from map("".join, zip_longest(*columns, fillvalue=""))


@pytest.mark.parametrize("value", ODD, ids=lambda text: text[:20])
def test_no_value_of_any_key_is_a_traceback(value: str) -> None:
    for text in files_with(value):
        with contextlib.suppress(ConfigError):
            repr(read(text))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a = " + 5000 * "[" + 5000 * "]", "nested too deeply"),
        (3000 * "[[job]]\n", "cron-leader.toml: and 2900 more"),
        ("\ufeff[lease]\nttl = 5", ":2: [lease] ttl = 5"),
        ("[run]\nmax_parallel = " + 5000 * "9", "cron-leader.toml: a number of too many digits"),
        ("[run]\nmax_parallel = 0x" + 5000 * "9", ":2: [run] max_parallel: must be at most"),
        ("[etcd]\nendpoints = 0x" + 5000 * "9", ":2: [etcd] endpoints: must be a list"),
        ("job = [3]", ":1: [[job]] number 1 = 3: must be a table"),
        ("[[job]]\nname = 2026-01-01", ':2: [[job]] number 1 name = "2026-01-01"'),
    ],
    ids=lambda text: text[:20],
)
def test_a_file_of_no_shape_is_refused_in_a_few_lines(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(text)
    assert says in str(refused.value)
    assert len(str(refused.value)) < 10_000
