"""Fault injection: real processes, real faults, a history on one clock, and checks that read it.

Not part of the wheel. `python -m chaos --help` says how to run it; README.md what it proves.
"""
