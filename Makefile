# `make demo` and `make test` do everything on a fresh machine; the rest is for those who work on sftune.
.PHONY: demo test test-long faults lint format docs bench-data parity-full test-gpu test-oldest clean help

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# With an NVIDIA driver the newest torch, which is a CUDA build of several gigabytes; without one the version that
# the tests were last run with.
TORCH ?= $(if $(shell command -v nvidia-smi 2>/dev/null),torch>=2.11,torch==2.13.0)

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -c 'import sys; assert (3, 11) <= sys.version_info < (3, 15), "sftune needs Python 3.11 to 3.14; make PYTHON=..."'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet '$(TORCH)'
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

demo: $(VENV)/.installed  ## installs, trains the tiny model on the built-in chat, asks it before and after
	$(BIN)/sftune train configs/tiny.yaml --overwrite
	$(BIN)/python docs/ask.py runs/tiny

# Whole files go to a process, the long ones first, so that none is left when the others are done. One process more
# than there are cores: some tests wait more than they work.
PROCESSES ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
# Tests start Python hundreds of times: compiled once, whatever a container's environment says of bytecode.
unexport PYTHONDONTWRITEBYTECODE
SPREAD := -n $(PROCESSES) --dist loadfile --no-loadscope-reorder tests/smoke tests/parity tests/unit

test: $(VENV)/.installed  ## unit, parity and smoke tests
	$(BIN)/pytest $(SPREAD)

test-long: $(VENV)/.installed  ## the runs that `make test` leaves out, to be over sooner
	$(BIN)/pytest $(SPREAD) -m long

faults: $(VENV)/.installed  ## kills a run thirty times and resumes it, fills disks, starts fifty times; an hour
	$(BIN)/pytest -s tests/faults

lint: $(VENV)/.installed  ## style, import contracts, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

format: $(VENV)/.installed  ## lets ruff rewrite what `make lint` complains of
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed  ## writes the generated pages again
	$(BIN)/python docs/generate.py

SHARED ?= ../shared
bench-data: $(VENV)/.installed  ## rows a second and memory of tokenising and packing, 20,000 and 200,000 rows; minutes
	$(BIN)/python tests/bench/data.py $(SHARED) 20000 200000

parity-full: $(VENV)/.installed  ## every combination of sharding options, not only every pair; three at once, for an hour
	printf '%s\n' qwen3_5 llama qwen3 | xargs -P 3 -I FAMILY env SFTUNE_PARITY_FULL=FAMILY $(BIN)/pytest -q tests/parity/test_sharding.py

test-gpu: $(VENV)/.installed  ## the tests that need an NVIDIA GPU and flash-linear-attention; prints what it measured
	$(BIN)/pip install --quiet --editable '.[gpu]'
	$(BIN)/pytest -s tests/gpu

test-oldest:  ## the tests with the oldest transformers that pyproject.toml admits, in an environment of its own
	$(MAKE) VENV=.venv-oldest .venv-oldest/.installed
	.venv-oldest/bin/pip install --quiet 'transformers==5.17.0'
	$(MAKE) VENV=.venv-oldest test

clean:  ## removes environments, caches and runs
	rm -rf .venv .venv-oldest runs .pytest_cache .ruff_cache .mypy_cache .import_linter_cache
