"""A digest on working days at nine, and a sample of the queue's length each ten seconds."""

from __future__ import annotations

from cron_leader import Tick, job


@job(cron="0 9 * * mon-fri", timezone="Europe/Warsaw", timeout="10m", start_within="3h")
def send_digest(tick: Tick) -> None:
    for subscriber in ("ada@mail.example", "grace@mail.example"):
        if tick.cancelled:
            return
        print(f"digest of {tick.scheduled_for:%d %B} to {subscriber}")


@job(cron="*/10 * * * * *", timeout="5s", grace="1s", catchup="none")
def sample_queue(tick: Tick) -> None:
    print(f"queue at {tick.scheduled_for:%H:%M:%S}: 0")
