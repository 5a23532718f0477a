PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Two processes with a thread each: two with two each would fight for the cores. glibc gives each step's memory back to
# the system unless told not to, which costs a convolutional network on the CPU a quarter of its time.
KEEP_MEMORY := MALLOC_TRIM_THRESHOLD_=4294967296 MALLOC_MMAP_THRESHOLD_=33554432
PYTEST := OMP_NUM_THREADS=1 $(KEEP_MEMORY) $(BIN)/python -m pytest --numprocesses 2

.DEFAULT_GOAL := help
.PHONY: help fit test test-fast lint format clean

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

fit: $(VENV)/.installed  ## Install the tested versions and train the flowers example
	$(BIN)/lightkit fit -c configs/flowers.yaml

test: $(VENV)/.installed-dev  ## Install the tested versions and run the whole test suite
	$(PYTEST)

test-fast: $(VENV)/.installed-dev  ## Run the tests that start no process, server or training
	$(PYTEST) -m "not slow"

lint: $(VENV)/.installed-dev  ## Check style, types and the floors between the rooms
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed-dev  ## Rewrite the sources in the house's format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:  ## Remove the environment and the tools' caches; runs and data stay
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 10) <= v <= (3, 13) else \
		"lightkit needs Python 3.10 to 3.13, but $(PYTHON) is %d.%d; name another: make PYTHON=python3.12 fit" % v)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,comet,timm]'
	@touch $@ $(VENV)/.installed
