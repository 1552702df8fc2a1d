"""How a run of the job host fails: by a user's exception, or by a Failure of our own."""

from __future__ import annotations

import os
import traceback

MAX_TEXT = 16 * 1024
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class Failure(Exception):
    """A run of ours has failed; nobody needs a traceback for it. code: the exit code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


def traceback_text(error: BaseException) -> str:
    """The traceback from the user's first frame on, at most MAX_TEXT of it: its end says most."""
    frame = error.__traceback__
    while frame is not None and _is_ours(frame.tb_frame.f_code.co_filename):
        frame = frame.tb_next
    text = "".join(traceback.format_exception(type(error), error, frame))
    return text if len(text) <= MAX_TEXT else f"...\n{text[-MAX_TEXT:]}"


def _is_ours(path: str) -> bool:
    return path.startswith(_PACKAGE) or "importlib" in path
