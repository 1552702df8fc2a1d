"""The figures of the README, measured on this machine: `python -m bench`, or `make bench`.

Timing lives here and not in the test-suite: a busy machine must not fail a test. Where a figure
depends on the machine, something bare is timed in the same run and the ratio stands beside it.
"""
