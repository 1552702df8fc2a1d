"""The supervisor's parts; what it is for, and what it promises, is told in supervisor.py."""
