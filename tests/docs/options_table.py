"""The table of a job's options in docs/jobs.md, which is not written by hand:

python -m tests.docs.options_table            # exit 1 if the page says something else
python -m tests.docs.options_table --write
"""

from __future__ import annotations

import sys

from cron_leader.config.options import table
from tests.docs.blocks import ROOT

PAGE = ROOT / "docs/jobs.md"
BEGIN, END = "<!-- options: made by `make options` -->\n", "<!-- options: end -->\n"


def shown(page: str) -> str:
    """What stands between the marks."""
    return page.partition(BEGIN)[2].partition(END)[0].lstrip("\n").replace("\n\n", "\n")


def mended(page: str) -> str:
    """The page with the table as it ought to be. Raises ValueError if a mark is gone."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name}: the marks around the table are gone: {BEGIN}{END}")
    return f"{before}{begin}\n{table()}\n{end}{after}"


def main(*options: str) -> int:
    page = PAGE.read_text(encoding="utf-8")
    if "--write" in options:
        PAGE.write_text(mended(page), encoding="utf-8")
    elif page != mended(page):
        print(f"{PAGE.name}: the table of options is old: make options")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
