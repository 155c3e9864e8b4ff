# `make` alone lists the targets. Every target sets up what it needs; after the first time this takes no time and no network.
SHELL := /bin/bash
BIN := .venv/bin
# Containers often set it. Without bytecode each process compiles Dagster, PySpark and the project: it takes four seconds to start, not two.
unexport PYTHONDONTWRITEBYTECODE
.DEFAULT_GOAL := help
.PHONY: help setup setup-tests setup-postgres demo ui test test-all test-fast test-store soak lint docs bench lock audit clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: ## Create .venv, install Java if missing, fetch Delta's, Kafka's and S3's jars, prepare Spark
	@.ci/setup

setup-tests: ## Run setup and install what the tests need: packages, PostgreSQL, a browser
	@.ci/setup tests

setup-postgres: setup ## Run setup and install what a registry and Dagster's storage in PostgreSQL need
	@.ci/setup postgres

LAKE ?=

demo: setup ## Run a year of flights through the pipeline and show the results (LAKE=s3://bucket/lake: in a bucket)
	@$(BIN)/python -m ops.demo $(if $(LAKE),--lake '$(LAKE)')

# Not ?=: of the environment it is another program's.
PORT =

ui: setup ## Open Dagster with the flights pipeline on 127.0.0.1 (PORT=N: another port than 3000)
	@$(BIN)/python -m ops.web.ui $(if $(PORT),--port '$(PORT)')

# Two processes of tests, each with its own Spark: a third of their time is spent waiting. Three take longer on two cores.
PROCESSES ?= 2

test: setup-tests ## Run the tests of CI: every rule once, and each kind of fault that takes seconds (half an hour)
	@$(BIN)/python -m pytest -n $(PROCESSES) --dist loadfile --no-loadscope-reorder

test-all: setup-tests ## Run every test: all engines, all kill points, random histories (hours)
	@$(BIN)/python -m pytest -n $(PROCESSES) --dist loadfile --no-loadscope-reorder --exhaustive

test-fast: setup-tests ## Run the tests that take at most a second and a half each (three minutes)
	@$(BIN)/python -m pytest -n $(PROCESSES) --dist loadfile -m "not slow"

STORE ?= versity

test-store: setup-tests ## Run conformance, kill tests and histories with their lakes on STORE=versity, moto or hdfs (hours)
	@$(BIN)/python -m pytest --store $(STORE) --exhaustive tests/conformance tests/crash tests/histories

MINUTES ?= 30

soak: setup-tests ## Inject random faults into deployed flows for MINUTES=30 and count rows (figures in out/soak.json)
	@TRIDELTA_SOAK_MINUTES=$(MINUTES) $(BIN)/python -m pytest -m soak -s tests/soak

lint: setup-tests ## Check style, types and directions of imports
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

docs: setup-tests ## Build the site of docs/ into out/site; a broken link is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "out/site/index.html"

bench: setup ## Measure against hand-written Spark (minutes)
	@$(BIN)/python -m benchmarks

# The versions of what running needs first, so that the tests' packages do not sway them.
lock: ## Rewrite the two lock files from pyproject.toml (needs the network; run all tests after it)
	@rm -rf .cache/lock && mkdir -p .cache && $$(.ci/find-python) -m venv .cache/lock
	@.cache/lock/bin/pip install --quiet --disable-pip-version-check --editable . 'setuptools>=75'
	@{ head -1 requirements.lock; .cache/lock/bin/pip freeze --all --exclude-editable --exclude pip; } > .cache/lock.txt
	@.cache/lock/bin/pip install --quiet --disable-pip-version-check --constraint .cache/lock.txt --editable '.[dev]'
	@{ head -1 requirements-test.lock; .cache/lock/bin/pip freeze --all --exclude-editable --exclude pip | grep -vxFf .cache/lock.txt; } \
		> .cache/lock-test.txt
	@.cache/lock/bin/pip install --quiet --disable-pip-version-check --require-hashes --no-deps --requirement .ci/uv.lock
	@for one in lock lock-test; do { head -1 .cache/$$one.txt; UV_NATIVE_TLS=1 .cache/lock/bin/uv pip compile --quiet --universal --no-deps \
		--generate-hashes --no-annotate --no-header .cache/$$one.txt; } > .cache/$$one.hashed || exit 1; done
	@mv .cache/lock.hashed requirements.lock && mv .cache/lock-test.hashed requirements-test.lock && rm -rf .cache/lock .cache/lock*.txt

# In its own environment, which is not part of what is tested. It looks the versions up in the index's advisories.
audit: ## Check the packages in the lock files for known vulnerabilities (needs the network)
	@test -x .cache/audit/bin/pip-audit || { mkdir -p .cache && $$(.ci/find-python) -m venv .cache/audit && \
		.cache/audit/bin/pip install --quiet --disable-pip-version-check pip-audit; }
	@.cache/audit/bin/pip-audit --strict --disable-pip --no-deps --requirement requirements.lock --requirement requirements-test.lock

clean: ## Remove what setup and the tools created; data (the lake, .tridelta) stays
	@rm -rf .venv .cache .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
