# One entry point for people and CI. Needs make, Python >= 3.11 and a package registry; Spark needs Java.

PYTHON ?= python3
VENV   ?= .venv
# Many tests wait for a server rather than compute, so more workers than cores pays.
JOBS   ?= 4
# Extra arguments for pytest: make test ARGS="tests/server -k restart"
ARGS   ?=
# What reads or writes the wire, and so differs with the compiled core.
PURE   := tests/wire tests/arrow tests/jetstream tests/blocking

BIN    := $(VENV)/bin
# The stamp's name carries the content of what decides the environment: a changed pin means a new stamp,
# an unchanged one costs a file check.
CORE   := $(wildcard src/jetspark/wire/_speed*.[ch])
DEPS   := $(shell cat pyproject.toml requirements.lock hatch_build.py $(CORE) | cksum | tr -d " ")
STAMP  := $(VENV)/.ready-$(DEPS)

.DEFAULT_GOAL := help
.PHONY: help setup java demo test check lint bench faults exactly-once lock audit clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) java ## Create .venv with everything that the tests and the demo need

$(STAMP): pyproject.toml requirements.lock hatch_build.py $(CORE) tools/setup.sh
	@PYTHON="$(PYTHON)" VENV="$(VENV)" STAMP="$(STAMP)" tools/setup.sh environment

java:
	@tools/setup.sh java

demo: setup ## Live orders, a Spark pipeline, a server crash, and proof that nothing was lost
	@$(BIN)/jetspark demo

test: setup ## Run all tests (JOBS=4, ARGS="tests/server -k restart")
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup $(ARGS)
ifeq ($(ARGS),)
	@echo "once more in pure Python, without the compiled core: what touches the wire"
	@JETSPARK_WIRE=python $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup $(PURE)
endif

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy --strict src

check: lint ## Everything CI checks: ruff, mypy, tests
	@$(MAKE) --no-print-directory test

bench: setup ## Measure beside nats-py, natsrpy and the raw limit: one table, a chart (under 10 minutes; ARGS=--quick)
	@$(BIN)/python bench/run.py $(ARGS)

faults: setup ## The table of faults in its full form, with figures (ARGS="F3 --seed 1")
	@$(BIN)/python tests/fault_table.py $(ARGS)

exactly-once: setup ## Kill a Spark pipeline at random moments and count every message (ARGS="--seed 1")
	@$(BIN)/python tests/exactly_once.py $(ARGS)

lock: setup ## Pin all dependencies anew, with hashes (ARGS="--upgrade" for newer versions)
	@VENV="$(VENV)" tools/lock.sh $(ARGS)

audit: setup ## Check the pinned dependencies: hashes, what is installed, known vulnerabilities
	@$(BIN)/python tools/audit.py

clean: ## Remove .venv, caches and build results
	@rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find src tests bench examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
