"""[[notify]] in the configuration: each key taken, and refused in words that help."""

from __future__ import annotations

from pathlib import Path

import pytest

from cron_leader.config import NotifyConfig, On, Quota, load
from cron_leader.errors import ConfigError

HOOK = 'webhook = "https://hooks.example.org/T0/secret"'


def notify(folder: Path, text: str, **environ: str) -> NotifyConfig:
    path = folder / "cron-leader.toml"
    path.write_text(f"[[notify]]\n{text}\n")
    (built,) = load(path, environ=environ).notify
    return built


def test_the_least_is_told_of_failures_and_recoveries_of_every_job(folder: Path) -> None:
    assert notify(folder, HOOK) == NotifyConfig(
        on=frozenset({On.FAILURE, On.RECOVERY}),
        jobs=(),
        webhook="https://hooks.example.org/T0/secret",
        command=(),
        body=None,
        at_most=Quota(30, 60.0),
        long_after_s=None,
        cwd=str(folder),
    )


def test_every_key_is_taken(folder: Path) -> None:
    built = notify(
        folder,
        'on = ["long", "missed"]\nlong_after = "5m"\njobs = ["db-*"]\nat_most = "2/h"\n'
        'webhook = "http://${HOST}/x"\nbody = \'{"text": "{text}"}\'',
        HOST="localhost",
    )
    assert (built.on, built.long_after_s) == (frozenset({On.LONG, On.MISSED}), 300)
    assert (built.jobs, built.at_most) == (("db-*",), Quota(2, 3600.0))
    assert (built.webhook, built.body) == ("http://localhost/x", '{"text": "{text}"}')
    assert notify(folder, 'command = ["mail", "-s", "x"]').command == ("mail", "-s", "x")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "[[notify]] number 1: needs a webhook or a command: one of them"),
        (f'{HOOK}\ncommand = ["x"]', "needs a webhook or a command: one of them"),
        ('command = [" "]', 'command = [" "]: its first item, the program, is empty'),
        (f'{HOOK}\non = ["failures"]', "did you mean"),
        (f"{HOOK}\non = []", "must not be empty"),
        (f'{HOOK}\njobs = "x"', "jobs"),
        (f'{HOOK}\non = ["long"]', 'long_after: goes with on = ["long"]'),
        (f'{HOOK}\nlong_after = "5m"', 'goes with on = ["long"]'),
        (f'{HOOK}\non = ["long"]\nlong_after = "soon"', "long_after"),
        (f'{HOOK}\nat_most = "lots"', 'at_most = "lots": is no such bound; write "10/m"'),
        (f'{HOOK}\nbody = "{{jobb}}"', "{jobb} is not known; known here: at, attempt,"),
        ('command = ["x"]\nbody = "{}"', "body = \"{}\": is for webhooks"),
        ("command = []", "command"),
        ('webhook = "ftp://host/x"', "webhook: must be an http:// or https:// URL"),
        ('webhook = "${NONE}"', "toml:2: [[notify]] number 1 webhook: environment"),
        (f'{HOOK}\nheaders = {{ A = "${{NONE}}" }}', "[[notify]] number 1 headers.A: environment"),
        (f'{HOOK}\nheaders = {{ Host = "x" }}', "headers: Host is set by cron-leader"),
        ('command = ["x"]\nheaders = { A = "x" }', "headers: go with a webhook; leave them out"),
        (f"{HOOK}\nwebhok = 1", "unknown key; did you mean webhook?"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_key_and_without_secrets(
    folder: Path, text: str, error: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        notify(folder, text)
    assert error in str(caught.value)
    assert "secret" not in str(caught.value)
    assert str(caught.value).startswith("cron-leader.toml:")


def test_a_table_with_one_bracket_is_told_to_have_two(folder: Path) -> None:
    path = folder / "cron-leader.toml"
    path.write_text(f"[notify]\n{HOOK}\n")
    with pytest.raises(ConfigError, match=r"must be written \[\[notify\]\]"):
        load(path, environ={})
