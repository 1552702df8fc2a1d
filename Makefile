# `make help` lists what there is. Needs make and Python >= 3.11 with venv
# (Debian 12: apt-get install make python3-venv). Everything else goes into .venv.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
  $$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
  && echo $$p && break; done)

VENV = .venv
BIN = $(VENV)/bin
INPUTS = pyproject.toml constraints.txt
PYTEST = $(BIN)/python -m pytest

# Modules are compiled once and not at each start, whatever the caller's environment says.
COMPILED = env -u PYTHONDONTWRITEBYTECODE

# These need root and network namespaces: `make scenarios`. CI runs both: TESTS=tests.
SCENARIOS = tests/chaos/test_scenarios.py tests/chaos/test_netns.py
TESTS = tests $(SCENARIOS:%=--ignore=%)
# Where `make chaos` breaks a fleet: in namespaces as root, else behind proxies of its own.
WORLD = $(if $(filter 0,$(shell id -u)),netns,proc)
PYTEST_ARGS =
# Most tests wait most of the time: for a lease to end, for a process to start. WORKERS=0: in turn.
WORKERS = 3
SIDE_BY_SIDE = -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# A plan that breaks a law is left in chaos/out/sim: `python -m chaos shrink` makes it small.
SEED = 0
SEEDS = 500
WITHIN = 75

.DEFAULT_GOAL = help
.PHONY: help demo test lint options bench bench-full chaos scenarios sim model clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.test ## three nodes, four acts, a verdict from the ledger (< 60 s)
	@$(COMPILED) $(BIN)/cron-leader demo $(DEMO_ARGS)

test: $(VENV)/.test ## every test that needs no root; some: TESTS=tests/core PYTEST_ARGS="-q -k word"
	$(PYTEST) $(SIDE_BY_SIDE) $(TESTS) $(PYTEST_ARGS)

lint: $(VENV)/.dev ## ruff, formatting, mypy --strict
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

options: $(VENV)/.test ## the table of a job's options in docs/jobs.md, made anew
	$(BIN)/python -m tests.docs.options_table --write

bench: $(VENV)/.test ## the figures of the README, measured here
	@$(COMPILED) $(BIN)/python -m bench $(BENCH_ARGS)

bench-full: $(VENV)/.test ## all figures, with 50 freezes, 80 cuts (root), ten million slots
	@$(COMPILED) $(BIN)/python -m bench --freezes 50 --cuts 40 --rows 10000000 \
	  --seconds 30 $(BENCH_ARGS)

chaos: $(VENV)/.test ## a minute of faults to a real fleet, a verdict, a drawing; SEED=7 for others
	@$(COMPILED) $(BIN)/python -m chaos run --world $(WORLD) --seed $(SEED) $(CHAOS_ARGS)

scenarios: $(VENV)/.test ## lease-stall, split-brain, one-way, every fault in namespaces (root)
	$(PYTEST) -n 2 --dist loadfile $(SCENARIOS) $(PYTEST_ARGS)

sim: $(VENV)/.test ## plans of faults in virtual time: SEEDS=500 from SEED=0 on, WITHIN=75 seconds
	@$(COMPILED) $(BIN)/python -m chaos run --world sim --seed $(SEED) --seeds $(SEEDS) \
	  --within $(WITHIN) --out chaos/out/sim

model: ## every claim about the protocol's model, some minutes (spin, gcc)
	@LIMIT=1200 chaos/model/check.sh

clean: ## remove .venv and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build

# The stamp files are touched last: an install that broke off is begun again.
PIP = $(COMPILED) $(BIN)/python -m pip --disable-pip-version-check \
  install --quiet --constraint constraints.txt

$(VENV)/.venv:
	@test -n "$(PYTHON)" || { echo "Python >= 3.11 with venv not found" \
	  "(Debian 12: apt-get install python3-venv), or name it: make PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

# The build back end is installed first: in pip's isolated builds it would not be a pinned one.
$(VENV)/.test: $(VENV)/.venv $(INPUTS)
	$(PIP) hatchling editables
	$(PIP) --no-build-isolation --editable '.[test]'
	@touch $@

$(VENV)/.dev: $(VENV)/.test
	$(PIP) --no-build-isolation --editable '.[dev]'
	@touch $@
