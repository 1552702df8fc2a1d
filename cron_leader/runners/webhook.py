"""POST one text to one URL: a process of its own, so that no name server, no slow peer and no
hanging TLS is waited for by the daemon. Standard library only.

stdin: {"url", "body", "timeout_s"}. Exit 0: the answer was 2xx; else 1, with one line on stderr
that does not hold the URL's path, which may be a secret.
"""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request


class _Stay(urllib.request.HTTPRedirectHandler):
    """A redirect would turn the POST into a GET, perhaps to another host: it is a failure."""

    def redirect_request(self, *args: object, **kwargs: object) -> None:
        return None


def main() -> int:
    asked = json.load(sys.stdin)
    request = urllib.request.Request(
        asked["url"],
        data=asked["body"].encode(),
        headers={"Content-Type": "application/json", "User-Agent": "cron-leader"},
    )
    try:
        with urllib.request.build_opener(_Stay).open(request, timeout=asked["timeout_s"]):
            return 0
    except urllib.error.HTTPError as error:
        print(f"HTTP {error.code}", file=sys.stderr)  # noqa: T201
    except (OSError, ValueError) as error:
        print(getattr(error, "reason", None) or type(error).__name__, file=sys.stderr)  # noqa: T201
    return 1


if __name__ == "__main__":
    sys.exit(main())
