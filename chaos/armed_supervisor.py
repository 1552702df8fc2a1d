"""The supervisor with one defect, named by $CHAOS_CANARY; started as supervisor.py itself is."""

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def main() -> int:
    parts = [ROOT, os.path.join(ROOT, "cron_leader")]
    sys.path[:0] = parts
    from chaos.canaries import CANARIES, VARIABLE

    CANARIES[os.environ[VARIABLE]].arm()
    from supervision.start import main  # type: ignore[import-not-found]

    sys.path[:] = [path for path in sys.path if path not in parts]
    return int(main(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
