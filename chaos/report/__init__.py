"""What a run looked like, drawn: `python -m chaos report DIR`."""

from chaos.report.page import kept, of, write

__all__ = ["kept", "of", "write"]
