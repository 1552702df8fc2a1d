"""Jobs that are defined in code: what the job host reports, made part of the configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from cron_leader.config import Config, build_jobs, merge_jobs
from cron_leader.runners import describe


def with_code_jobs(config: Config, targets: Sequence[str]) -> Config:
    """The configuration with the jobs of its modules; ConfigError if a module or a target fails.

    targets: "pkg.mod:function" of [[job]] tables; their modules are imported to see that they can.
    """
    modules = [*config.modules, *(target.partition(":")[0] for target in targets)]
    base = config.path.parent if config.path else Path.cwd()
    described = asyncio.run(describe(list(dict.fromkeys(modules)), cwd=base))
    wanted = set(config.modules)
    tables = [table for table in described.jobs if _module(table) in wanted]
    return merge_jobs(config, build_jobs(tables, where="@job", base=base))


def _module(table: object) -> str:
    target = table.get("python") if isinstance(table, dict) else None
    return str(target).partition(":")[0]
