"""Jobs that are defined in code: what the job host reports, made part of the configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from cron_leader.config import Config, build_jobs, merge_jobs
from cron_leader.runners import describe


def with_code_jobs(config: Config, targets: Sequence[str]) -> Config:
    """The configuration with the jobs of its modules, as a node would have it.

    targets: "pkg.mod:function" of [[job]] tables, imported to see that they can be. Raises
    ConfigError if a module or a target cannot.
    """
    return asyncio.run(_with_code_jobs(config, targets))


async def _with_code_jobs(config: Config, targets: Sequence[str]) -> Config:
    await describe((), cwd=config.base, targets=targets)
    described = await describe(config.modules, cwd=config.base)
    return merge_jobs(config, build_jobs(described.jobs, where="@job", base=config.base))
