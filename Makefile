# Each target sets up what it needs in .venv; only Python 3.11+ and make have to be there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Python compiles what it imports; compiling all of PyTorch at once costs time and 200 MB.
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
# What using Phalanx needs, and what working on it needs besides: TensorFlow, MLflow, checkers.
STAMP := $(VENV)/.installed
DEV := $(VENV)/.installed-dev
FULL := $(VENV)/.installed-full

.PHONY: help setup demo test test-full test-all fuzz check docs bench clean

# Two processes, a file of tests at a time: files share runs that are dear to make.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --durations 20

help: ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

setup: $(DEV) ## install everything into .venv

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Phalanx needs Python 3.11 or newer; $$($(PYTHON) --version) was found. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) (a few minutes the first time: PyTorch is large) ..."
	@$(PIP) -e .
	@touch $@

$(DEV): $(STAMP)
	@echo "Installing what tests and checks need into $(VENV) (TensorFlow is large, too) ..."
	@$(PIP) -e '.[dev]'
	@touch $@

$(FULL): $(DEV)
	@echo "Installing what the full tests need besides (Hugging Face, Lightning, Spark, a notebook's kernel) ..."
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[full]'
	@touch $@

demo: $(STAMP) ## train on a local cluster of four processes and compare strategies
	@$(BIN)/phalanx demo

test: $(DEV) ## run the tests that a change needs: at most a quarter of an hour on two cores
	@$(PYTEST) -m "not full" --durations-file=test-durations.csv $(TESTS)

test-full: $(FULL) ## run the other tests: every fault at every moment, backend and launcher
	@$(PYTEST) -m full --durations-file=test-durations-full.csv $(TESTS)

test-all: test test-full ## run all tests

fuzz: $(DEV) ## search for new examples that break a property
	@$(PYTEST) --hypothesis-profile search -m "hypothesis and not full" $(TESTS)

check: $(DEV) docs ## ruff, mypy --strict, import-linter, links of the documentation
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

docs: $(DEV) ## build the documentation site into site/; a broken link fails
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(DEV) ## measure against plain PyTorch and the limits of memory and TCP
	@$(BIN)/python benchmarks/input.py
	@$(BIN)/python benchmarks/sync.py
	@$(BIN)/python benchmarks/session.py
	@$(BIN)/python benchmarks/paramserver.py
	@$(BIN)/python benchmarks/report.py
	@$(BIN)/python benchmarks/dashboard.py
	@$(BIN)/python benchmarks/observe.py
	@$(BIN)/python benchmarks/switch.py
	@$(BIN)/python benchmarks/startup.py
	@$(BIN)/python benchmarks/threads.py
	@$(BIN)/python benchmarks/exchange.py

clean: ## remove .venv and caches
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
