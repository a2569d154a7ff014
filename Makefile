# One entry point for people and CI. Needs make, Python >= 3.11 and a package registry; Spark needs Java.

PYTHON ?= python3
VENV   ?= .venv
# Many tests wait for a server rather than compute, so more workers than cores pays.
JOBS   ?= 6
# Extra arguments for pytest: make test ARGS="tests/server -k restart"
ARGS   ?=
# make soak-tests: how often, under which loads, with which first seed (random when empty).
RUNS   ?= 1
LOADS  ?= idle busy stops
SEED   ?=

BIN    := $(VENV)/bin
# The stamp's name carries the content of what decides the environment: a changed pin means a new stamp,
# an unchanged one costs a file check.
CORE   := $(wildcard src/jetspark/wire/_core/_speed*.[ch])
DEPS   := $(shell cat pyproject.toml requirements.lock hatch_build.py $(CORE) | cksum | tr -d " ")
STAMP  := $(VENV)/.ready-$(DEPS)

.DEFAULT_GOAL := help
.PHONY: help setup java demo quick test soak-tests sanitize check lint bench faults exactly-once lock audit clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) java ## Create .venv with everything that the tests and the demo need

$(STAMP): pyproject.toml requirements.lock hatch_build.py $(CORE) tools/setup.sh
	@PYTHON="$(PYTHON)" VENV="$(VENV)" STAMP="$(STAMP)" tools/setup.sh environment

java:
	@tools/setup.sh java

demo: setup ## Live orders, a Spark pipeline, a server crash, and proof that nothing was lost
	@$(BIN)/jetspark demo

quick: setup ## The quick tests, compiled core: no Spark, no cluster, nothing slow (about 100 seconds)
	@$(BIN)/python tools/run_tests.py --jobs $(JOBS) -- --ignore tests/faults -m "not spark and not cluster and not browser and not slow" $(ARGS)

test: setup ## All tests, compiled core and pure Python (about 12 minutes; JOBS=6, ARGS="tests/server -k restart")
	@$(BIN)/python tools/run_tests.py --jobs $(JOBS) -- $(ARGS)

soak-tests: setup ## All tests again and again: idle, busy, with random stops (RUNS=3, LOADS=stops, SEED=1, ARGS=tests/server)
	@$(BIN)/python tools/soak_tests.py --jobs $(JOBS) --runs $(RUNS) --loads $(LOADS) $(if $(SEED),--seed $(SEED)) -- $(ARGS)

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@MYPYPATH=tests $(BIN)/mypy --strict src tests/support/marking.py tests/support/raw_nats.py tests/support/source_*.py tests/support/stops.py tools/run_tests.py tools/soak_tests.py
	@$(BIN)/mypy --strict tests/typing
	@$(BIN)/pyright --pythonpath $(BIN)/python

check: lint ## Everything CI checks: ruff, mypy, tests, sanitizers
	@$(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory sanitize

bench: setup ## Measure beside nats-py, natsrpy and the raw limit: one table, a chart (under 10 minutes; ARGS=--quick)
	@$(BIN)/python bench/run.py $(ARGS)

faults: setup ## The table of faults in its full form, with figures (ARGS="F3 --seed 1")
	@$(BIN)/python tests/support/fault_table.py $(ARGS)

exactly-once: setup ## Kill Spark pipelines at random moments and count every message (ARGS="queries --seed 1")
	@$(BIN)/python tests/exactly_once $(ARGS)

sanitize: setup ## The compiled core under ASAN and UBSan: tests, and a fuzz against pure Python (ARGS="--seconds 600")
	@$(BIN)/python tools/sanitize.py $(ARGS)

lock: setup ## Pin all dependencies anew, with hashes (ARGS="--upgrade" for newer versions)
	@VENV="$(VENV)" tools/lock.sh $(ARGS)

audit: setup ## Check the pinned dependencies: hashes, what is installed, known vulnerabilities
	@$(BIN)/python tools/audit.py

clean: ## Remove .venv, caches and build results
	@rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find src tests bench examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
