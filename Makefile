# Commands for developers; they need git, make and python3 (with venv).

SHELL := /bin/sh
# Commands start many short processes; without bytecode each would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE
BIN := .venv/bin
# One more than the cores of a small machine: many tests wait for another process.
WORKERS ?= 3
# Rounds of each race in test-rounds.
ROUNDS ?= 200
# Arguments for pytest, the demo or the benchmark: make test ARGS="-k publish"
ARGS ?=

COMPILE = $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-annotate \
	--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" $(UPGRADE)

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-hostile test-engines test-rounds model simulate histories serve bench fmt check lock docs faults postgres chromium conductor engines classes screenshots

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install all dependencies into .venv (fast if nothing changed)
	@tools/setup.sh

demo: setup ## Run the worked example on a local Spark: branch, build, merge, build nothing
	@$(BIN)/headgate demo $(ARGS)

# Tests marked `xdist_group("spark")` run on one worker and share one JVM; each of the groups
# "conductor" and "browser" runs on one worker too. Tests with their own JVM run on any worker.
test: check postgres chromium classes ## Check the code, then run the tests of every promise but those of test-hostile and test-engines
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --ignore tests/hostile --ignore tests/engines $(ARGS)

test-hostile: setup postgres chromium engines classes ## Run the tests of attacks, overload, power cuts, damaged files and random histories
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup tests/hostile $(ARGS)

test-engines: setup postgres conductor engines classes ## Run the tests of Spark in all places, other engines, Conductor and the examples
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup tests/engines $(ARGS)

test-rounds: setup postgres ## Run the races of twelve writers (ROUNDS=200: a quarter of an hour)
	@HEADGATE_TEST_ROUNDS=$(ROUNDS) $(BIN)/python -m pytest -n $(WORKERS) tests/acceptance/test_o03_o04_many_writers.py $(ARGS)

model: setup ## Check the model of the door with Alloy (ARGS=--small: the scope of CI)
	@$(BIN)/python -m tools.check_model $(ARGS)

simulate: setup postgres ## Simulate clients under faults (ARGS="--seed 7 --steps 1000000 --database postgres")
	@$(BIN)/python -m tools.simulate $(ARGS)

histories: setup postgres ## Record clients under faults, and check it (ARGS="--seed 7 --minutes 60 --database postgres")
	@$(BIN)/python -m tools.histories $(ARGS)

serve: setup ## Start a server for the store of this directory
	@$(BIN)/headgate serve $(ARGS)

bench: setup ## Run the benchmarks, print a table, write JSON
	@$(BIN)/python -m bench $(ARGS)

fmt: setup ## Format the code and apply automatic fixes
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/ruff format .

check: setup ## Check lint rules, formatting, types, the order of the rooms, and dead code
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/vulture

lock: setup ## Regenerate the lock files from pyproject.toml (UPGRADE=--upgrade: newest releases)
	@$(COMPILE) --all-extras --group dev --output-file requirements.lock pyproject.toml
	@$(COMPILE) --no-deps --output-file tools/bootstrap.lock tools/bootstrap.in
	@$(COMPILE) --no-deps --output-file tools/postgres.lock tools/postgres.in
	@$(COMPILE) --no-deps --output-file tools/duckdb.lock tools/duckdb.in
	@$(COMPILE) --no-deps --output-file tools/ducklake.lock tools/ducklake.in
	@$(COMPILE) --no-deps --output-file tools/frames.lock tools/frames.in
	@$(COMPILE) --no-deps --output-file tools/trino.lock tools/trino.in

docs: setup ## Regenerate docs/reference.md and docs/errors.md from the code
	@$(BIN)/python -m tools.make_reference
	@$(BIN)/python -m tools.make_errors

faults: setup ## Regenerate docs/faults.md: the failpoints at which each operation is killed
	@$(BIN)/python -m tools.make_faults

screenshots: setup chromium ## Regenerate the screenshots of the docs
	@$(BIN)/python -m tools.make_screenshots

postgres: setup
	@$(BIN)/python -m tools.ensure_postgres

chromium: setup
	@$(BIN)/python -m tools.ensure_chromium

conductor: setup
	@$(BIN)/python -m tools.ensure_conductor

engines: setup
	@$(BIN)/python -m tools.ensure_engines

classes: setup
	@$(BIN)/python -m tools.ensure_class_archive
