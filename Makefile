# Every target makes the environment that it needs in .venv; Python 3.11 to 3.14, make and a C library are enough.
# `make test ARGS="-k frontier"` and the like pass arguments on.
.DEFAULT_GOAL := help
.PHONY: help demo dev test check bench browser drill conformance format clean

UV_VERSION := 0.13.9
BIN := .venv/bin
# Three processes on two cores: tests wait for servers, timers and kills more than they compute.
PYTEST := $(BIN)/python -m pytest crawl_pipeline_tests -q -n 3 --dist loadgroup
ARGS ?=

# The first Python that fits; `make PYTHON=/path/to/python3.13 test` chooses another.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$python" -c 'import sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' 2>/dev/null \
	&& echo "$$python" && break; done)

export UV_PYTHON_DOWNLOADS := never
export UV_PROJECT_ENVIRONMENT := .venv

help:  ## Show this list
	@echo "make TARGET, where TARGET is one of:"
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-14s %s\n", $$1, $$2 }'

demo: .venv/.ready  ## Crawl the bundled demo shop on the embedded Postgres and show what came of it
	$(BIN)/python -m crawl_pipeline.demo $(ARGS)

dev: .venv/.ready  ## The Dagster UI on http://127.0.0.1:3000 with its daemon, the demo shop and the embedded Postgres
	$(BIN)/crawl-pipeline dev $(ARGS)

test: .venv/.ready  ## Every test that needs nothing beyond PyPI
	$(PYTEST) -m "not drill" $(ARGS)

check: .venv/.ready  ## Format, lint, types, imports, tests: what CI runs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MAKE) --no-print-directory test

bench: .venv/.bench  ## The benchmark: a table with ratios
	$(BIN)/python -m crawl_pipeline_tests.bench $(ARGS)

drill: .venv/.ready  ## Stress and outages played through: minutes, not seconds
	$(PYTEST) -m drill $(ARGS)

browser: .venv/.browser  ## The tests of the UI in Chromium (Debian: apt-get install chromium)
	$(PYTEST) -m browser $(ARGS)

conformance: .venv/.ready  ## The published test suites of ../shared/corpora
	$(PYTEST) -m conformance $(ARGS)

format: .venv/.ready  ## Format the code and mend what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## Remove the environment and all caches; what was crawled (.crawl) stays
	rm -rf .venv dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

$(BIN)/uv:
	@test -n "$(PYTHON)" || { echo "No Python 3.11 to 3.14 with venv found; install one, or name it: make PYTHON=/path/to/python" >&2; exit 1; }
	"$(PYTHON)" -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "uv==$(UV_VERSION)"

.venv/.ready: $(BIN)/uv pyproject.toml uv.lock
	$(BIN)/uv sync --quiet --frozen --python $(BIN)/python
	@rm -f .venv/.bench .venv/.browser && touch $@

.venv/.bench: .venv/.ready
	$(BIN)/uv sync --quiet --frozen --inexact --python $(BIN)/python --group bench
	@touch $@

.venv/.browser: .venv/.ready
	$(BIN)/uv sync --quiet --frozen --inexact --python $(BIN)/python --group browser
	@touch $@
