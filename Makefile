# One command per job; `make help` lists them. Needs Python 3.11 or later, make and git, nothing else.

.DEFAULT_GOAL := help

# The newest Python that runs, is 3.11 or later and can make a virtual environment. Give your own with PYTHON=...
USABLE := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3 python; do \
	"$$p" -c '$(USABLE)' >/dev/null 2>&1 && { echo "$$p"; break; }; done)

EXTRAS ?= dev
PYTEST_ARGS ?=
MINUTES ?= 15
SEED ?=
VENV := .venv
RUN := $(VENV)/bin/python
STAMP := $(VENV)/.built
CODE := src tests

.PHONY: help venv demo test torture bench bench-peers interop format format-check lint types layers check clean

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name text; do \
		printf '  %-14s %s\n' "$$name" "$$text"; done

venv: $(STAMP) ## create .venv with the project and its development tools

# Built anew when pyproject.toml changes; the stamp comes last, so a build that was cut short is repeated.
$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { \
		echo "No Python 3.11 or later with venv and ensurepip was found; name one with PYTHON=..." >&2; exit 1; }
	"$(PYTHON)" -m venv --clear $(VENV)
	$(RUN) -m pip install --quiet --no-input --disable-pip-version-check -e '.[$(EXTRAS)]'
	@touch $@

demo: $(STAMP) ## migrate, list, show and continue real old sessions in a scratch project
	$(RUN) scripts/demo.py

test: $(STAMP) ## run all tests (PYTEST_ARGS='-k word' for some)
	$(RUN) -m pytest -q -n auto $(PYTEST_ARGS)

# The slow tests first; everything at once for what is left of the time (a minute at least). The seed is printed.
torture: $(STAMP) ## run the slow tests, then everything at once with kills and failing disks (MINUTES=15 SEED=...)
	@began=$$(date +%s); \
	$(RUN) -m pytest -q -n auto -m torture --timeout 3600 $(if $(SEED),--randomly-seed=$(SEED)) $(PYTEST_ARGS) && \
	left=$$(( $(MINUTES) * 60 - $$(date +%s) + began )) && \
	$(RUN) -m tests.torture.mixed --seconds $$(( left > 60 ? left : 60 )) $(if $(SEED),--seed $(SEED))

bench: $(STAMP) ## measure this store and print a table
	$(RUN) bench/bench.py

bench-peers: $(STAMP) ## measure this store beside others (installs them into their own environment)
	$(RUN) bench/peers.py

interop: ## let the real Kimi CLI read and write our sessions (needs Python 3.12 or later)
	scripts/interop

format: $(STAMP) ## rewrite the code in the house format, imports sorted
	$(RUN) -m ruff check --quiet --select I --fix $(CODE)
	$(RUN) -m ruff format $(CODE)

format-check: $(STAMP) ## say which files are not in the house format
	$(RUN) -m ruff format --check --quiet $(CODE)

lint: $(STAMP) ## check the code's habits with ruff
	$(RUN) -m ruff check $(CODE)

types: $(STAMP) ## check the types of code and tests with mypy --strict
	$(RUN) -m mypy

layers: $(STAMP) ## check that imports only point down
	$(RUN) -m pytest -q -p no:randomly tests/test_layers.py

check: format-check lint types layers test ## everything the above checks, in one go

clean: ## remove what was built here
	rm -rf $(VENV) .interop-venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .demo
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
