# `make quickstart` and `make test` need Python 3.10 or later and make; everything else they bring along in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Benchmarks have an environment of their own: peers that nothing else needs live there.
BENCH := .venv-bench
# Python compiles what it imports. Compiling all 22,000 files of the packages would take longer than most of the tests.
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt
PIP := $(BIN)/python $(PIP_INSTALL)
# One torch thread per test worker: two workers with two threads each would fight for two cores.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
PYTEST := $(BIN)/python -m pytest -q
# A file's tests share what they train and attack, so one worker runs all of them.
WORKERS := -n 2 --dist loadfile

.PHONY: help quickstart test lint types imports pytest slow pythons docs bench bench-docs reproduce clean

help:
	@echo "make quickstart   train, attack and explain a randomized ensemble, in minutes"
	@echo "make test         ruff, mypy, import rules and the tests"
	@echo "make slow         the tests that take long, before a release"
	@echo "make pythons      what needs no torch, on every Python from 3.10 to 3.13 that is installed"
	@echo "make docs         the documentation as a site, into site/"
	@echo "make bench        speed and strength against peers and known optima; ARGS='attacks --quick' for a short look"
	@echo "make bench-docs   benchmarks/README.md from benchmarks/results.json"
	@echo "make reproduce    the paper's tables and figures; ARGS='--scale cpu' for CIFAR-10"
	@echo "make clean        remove the environment and the site"

quickstart: $(VENV)/installed
	$(BIN)/randens quickstart

test: lint types imports pytest

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed-dev
	$(BIN)/mypy

imports: $(VENV)/installed-dev
	$(BIN)/lint-imports

pytest: $(VENV)/installed-dev
	$(ONE_THREAD) $(PYTEST) $(WORKERS)

slow: $(VENV)/installed-dev
	$(ONE_THREAD) $(PYTEST) $(WORKERS) -m slow

pythons:
	.ci/pythons

# Warnings are errors (never with --quiet, which drops them uncounted). The variable silences a notice about the
# builder's successor, which is no warning.
docs: $(VENV)/installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "The site is in site/: open site/index.html."

reproduce: $(VENV)/installed
	$(BIN)/python -m paper.reproduce $(ARGS)

bench: $(BENCH)/installed
	$(BENCH)/bin/python -m benchmarks $(ARGS)

bench-docs: $(BENCH)/installed
	$(BENCH)/bin/python -m benchmarks.page

clean:
	rm -rf $(VENV) $(BENCH) .venv-3.* site

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("Python 3.10 or later is needed, this is " + sys.version.split()[0] if sys.version_info < (3, 10) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing randens and what it needs into $(VENV); this takes a few minutes the first time."
	$(PIP) hatchling editables
	$(PIP) --no-build-isolation --editable ".[torch]"
	@touch $@

$(VENV)/installed-dev: pyproject.toml constraints.txt | $(VENV)/installed
	@echo "Installing the tools for development into $(VENV)."
	$(PIP) --no-build-isolation --editable ".[dev]"
# Their requirements name torchvision, which torchattacks's attacks do not need; tests of timm have a stand-in.
	$(PIP) --no-deps torchattacks timm
	@touch $@ $(VENV)/installed

BENCH_PIP := $(BENCH)/bin/python $(PIP_INSTALL)

$(BENCH)/installed: pyproject.toml constraints.txt benchmarks/requirements.txt benchmarks/requirements-alone.txt
	@echo "Installing randens and the peers it is measured against into $(BENCH); minutes the first time."
	$(PYTHON) -m venv $(BENCH)
	$(BENCH_PIP) hatchling editables
	$(BENCH_PIP) --no-build-isolation --editable ".[deploy]" --requirement benchmarks/requirements.txt
	$(BENCH_PIP) --no-deps --requirement benchmarks/requirements-alone.txt
	@touch $@
