# Two commands: `make run` and `make test`. Both build .venv from the hash-pinned requirements.lock first.
# Needs python3 (3.11 or newer), pip, make and git; nothing is installed outside this folder.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/sh
PYTHON ?= python3
# The Python of .venv: that of `make PYTHON=...`, or the better one of the PATH's and the distribution's.
CHOSEN_PYTHON = $(if $(filter file,$(origin PYTHON)),$(PYTHON) tools/choose_python.py $(PYTHON),command -v $(PYTHON))
UV_VERSION := 0.13.7
UV := .tools/bin/uv
BIN := .venv/bin
READY := .venv/.ready
UV_READY := .tools/uv-$(UV_VERSION)
UP := $(wildcard alembic/versions/*.up.sql)
DOWN := $(wildcard alembic/versions/*.down.sql)
REFERENCE := settings errors metrics
FAST_TESTS := tests/unit tests/api tests/sql tests/contract tests/http
OUTSIDE := $(shell grep -ls CONCURRENTLY $(UP) $(DOWN))
# alembic/env.py sets the timeouts and opens the transaction. Down migrations must drop objects.
# Small integer types are intended, because every byte is WAL.
SQUAWK := $(BIN)/squawk --exclude require-lock-timeout,require-statement-timeout,prefer-bigint-over-int,prefer-bigint-over-smallint
SQUAWK_DOWN := $(SQUAWK),ban-drop-table,ban-drop-column,ban-drop-database,ban-drop-function

# Use the system's certificates, so that uv works behind a private certificate authority.
# Never download a Python.
export UV_SYSTEM_CERTS := 1
export UV_PYTHON_DOWNLOADS := never
export UV_CACHE_DIR := $(CURDIR)/.tools/uv-cache

# uv does not read pip's configuration. Pass pip's index to uv, so that a mirror set up for pip works here too.
with_index = index="$${PIP_INDEX_URL:-$$($(PYTHON) -m pip config get global.index-url 2>/dev/null)}"; \
	if [ -n "$$index" ]; then export UV_DEFAULT_INDEX="$${UV_DEFAULT_INDEX:-$$index}"; fi;

.PHONY: help run test test-fast lint bench bench-cost bench-policies bench-flat bench-growth bench-profile properties model fuzz chaos chaos-full mutants failover patroni rolling image-check sbom fresh format lock openapi schema reference clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(READY) ## serve on 127.0.0.1:8080 with an embedded Postgres (or DATABASE_URL); Ctrl-C stops both
	@exec $(BIN)/python -m app serve --migrate

test: lint ## everything CI runs: lint, then pytest on a real Postgres
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test-fast: $(READY) ## while editing: unit, api, sql, contract and http tests without the slow ones (ARGS="-k lease")
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow" --durations 5 $(FAST_TESTS) $(ARGS)

lint: $(READY) ## ruff, mypy, import-linter, bandit, squawk; check that generated files are up to date
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/bandit --quiet --recursive --severity-level medium --configfile pyproject.toml app alembic
	$(SQUAWK) --assume-in-transaction $(filter-out $(OUTSIDE),$(UP))
	$(SQUAWK_DOWN) --assume-in-transaction $(filter-out $(OUTSIDE),$(DOWN))
	$(if $(OUTSIDE),$(SQUAWK) $(OUTSIDE))
	@$(MAKE) --no-print-directory fresh

bench: $(READY) ## compare Longshore, bare Postgres and other brokers in turns; writes bench/results (ARGS="--quick")
	@$(BIN)/python -m bench $(ARGS)

bench-cost: $(READY) ## measure WAL bytes and buffers per job on a separate Postgres (ARGS="--ready 5000000")
	@$(BIN)/python -m bench.cost $(ARGS)

bench-policies: $(READY) ## measure the time each policy adds to a claim or an enqueue (ARGS="--singles 2000 --batches 50")
	@$(BIN)/python -m bench.policies $(ARGS)

bench-flat: $(READY) ## measure claims with millions of stored jobs and with dead tuples (ARGS="--share 0.01")
	@$(BIN)/python -m bench.flat $(ARGS)

bench-profile: $(READY) ## draw a flame graph of each fast route, in bench/results; needs permission to trace processes
	@$(BIN)/python -m bench.profiles

bench-growth: $(READY) ## calculate the resources for 100 to 1,000,000 jobs/s from the newest bench/results, into docs/operations/capacity.md
	@$(BIN)/python -m bench.growth $(ARGS)

properties: $(READY) ## property tests with 200 examples each; takes a few minutes
	PROPERTIES=200 $(BIN)/python -m pytest tests/concurrency/properties

model: $(READY) ## model test of the lease protocol: 300 random runs of 50 steps
	PROPERTIES=300 $(BIN)/python -m pytest tests/concurrency/model

fuzz: $(READY) ## 500 generated requests per operation: no 5xx, no response outside openapi.json (ARGS="-k claim --hypothesis-seed 7")
	FUZZ=500 $(BIN)/python -m pytest tests/contract/test_fuzz.py $(ARGS)

chaos: $(READY) ## inject faults under load and check the outcome of every job (ARGS="--seed 7 --jobs 20000 --faults 24")
	$(BIN)/python -m tests.chaos $(ARGS)

chaos-full: $(READY) ## chaos with a million jobs, 200 faults and all nemeses; takes most of an hour
	$(BIN)/python -m tests.chaos --full --jobs 1000000 --faults 200 $(ARGS)

mutants: $(READY) ## run chaos on brokers with one deliberate bug each; every bug must be found on three of three seeds (ARGS="no_dedupe")
	$(BIN)/python -m tests.chaos.mutation $(ARGS)

failover: $(READY) ## failover tests: standbys, old primaries, restores, and (as root) power cuts and full disks
	$(BIN)/python -m pytest tests/faults/failover

patroni: $(READY) ## switchover and crash under Patroni; needs patroni and etcd on the PATH
	PATRONI=1 $(BIN)/python -m pytest tests/faults/failover/test_patroni.py

rolling: $(READY) ## replace brokers one by one under load, this release and the previous one in turns (ARGS="--rounds 20 --kill")
	@$(BIN)/python -m tests.upgrades.rollout.rolling $(ARGS)

image-check: $(READY) ## build the container image and run it read-only against a Postgres; as root, needs buildah and debootstrap
	@$(BIN)/python -m tests.tools.image

sbom: $(READY) ## write sbom.json: the components of a release, as CycloneDX
	$(BIN)/python -m tests.tools.dump_sbom > sbom.json.new
	@mv sbom.json.new sbom.json

fresh: $(READY) ## check that openapi.json, schema.sql and docs/reference match the code
	$(BIN)/python -m app openapi | diff -u openapi/openapi.json -
	$(BIN)/python -m tests.tools.dump_schema | diff -u alembic/schema.sql -
	for page in $(REFERENCE); do $(BIN)/python -m tests.tools.reference_pages $$page | diff -u docs/reference/$$page.md - || exit 1; done

format: $(READY) ## format the code and fix what ruff can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

openapi: $(READY) ## write openapi/openapi.json
	@mkdir -p openapi
	$(BIN)/python -m app openapi > openapi/openapi.json.new
	@mv openapi/openapi.json.new openapi/openapi.json

schema: $(READY) ## write alembic/schema.sql, a dump of the newest migration
	$(BIN)/python -m tests.tools.dump_schema > alembic/schema.sql.new
	@mv alembic/schema.sql.new alembic/schema.sql

reference: $(READY) ## write docs/reference: settings, errors and metrics
	for page in $(REFERENCE); do \
		$(BIN)/python -m tests.tools.reference_pages $$page > docs/reference/$$page.md.new && \
		mv docs/reference/$$page.md.new docs/reference/$$page.md || exit 1; done

lock: $(UV_READY) ## write requirements.lock from pyproject.toml (UPGRADE=1 upgrades all versions)
	$(with_index) $(UV) pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes \
		--all-extras --group dev --no-emit-index-url --no-emit-find-links --no-annotate $(if $(UPGRADE),--upgrade) \
		--custom-compile-command "make lock" --output-file requirements.lock

clean: ## remove the environment and caches; the data folder .longshore stays
	rm -rf .venv .tools .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find app tests bench alembic -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# `pip install --target` also works where Debian's pip refuses to install ("externally managed").
$(UV_READY):
	@$(PYTHON) -c 'import sys; sys.exit("Longshore needs Python 3.11 or newer: make PYTHON=python3.x" if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-warn-script-location \
		--upgrade --target .tools uv==$(UV_VERSION)
	@touch $(UV_READY)

$(READY): requirements.lock $(UV_READY)
	@echo "Setting up .venv (once)…"
	@$(UV) venv --quiet --allow-existing --python "$$($(CHOSEN_PYTHON))" .venv
	@$(with_index) $(UV) pip sync --quiet --require-hashes --python $(BIN)/python requirements.lock
	@touch $(READY)
