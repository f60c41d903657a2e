# `make demo` and `make test` need Python 3.11.4 or newer with venv, make, and what pip downloads.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The versions that were tested, to the number: make setup CONSTRAINTS='--constraint constraints.txt'
CONSTRAINTS ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo lint types check tests test quick formats luck fuzz docs peers format clean release-check

help:  ## show what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16

# The stamp makes set-up idempotent: it is redone only when the project's requirements change.
$(VENV)/.ready: pyproject.toml reproduction/pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11, 4) else "Sigil needs Python 3.11.4 or newer: make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' --editable ./reproduction $(CONSTRAINTS)
	touch $@

setup: $(VENV)/.ready  ## make .venv with everything in it

demo: setup  ## keys, training, verification: the whole story in minutes
	$(BIN)/sigil demo

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: setup
	$(BIN)/mypy

check: lint types  ## lint, format and types

# Two cores and four workers, as some tests wait for processes that they started. A file's tests stay on one
# worker, so that what they share is made once, and the files that take longest come first (conftest.py).
# Tests start a hundred processes of Python, so that compiled modules are kept, whatever the environment says.
WORKERS ?= 4
PYTEST = PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

tests: setup
	$(PYTEST)

# In a fresh clone mypy takes one core for a minute: beside the tests, not before them.
test: lint  ## checks and every test
	@$(MAKE) --no-print-directory -j2 types tests

# None of these waits for a process, and each worker more collects all tests once more.
quick: WORKERS = 2
quick: setup  ## the tests that start no process and train nothing, in a minute
	$(PYTEST) -m 'not slow'

# `auto` takes the number format of the processor, and `make test` runs everything in that one: here comes what
# depends on it in the other. The variables of PyTorch, oneDNN and MKL choose among the processor's instructions.
OTHER_FORMAT = $(shell $(BIN)/python -c 'from sigil.federation.precision import choose; \
	print("float32" if choose().bfloat16 else "bfloat16")')
formats: setup  ## what depends on the number format: in the one that `auto` leaves, then with AVX2 at most
	SIGIL_PRECISION=$(OTHER_FORMAT) $(PYTEST) -m formats
	SIGIL_PRECISION=float32 ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 \
		$(PYTEST) -m formats

# Under `make test` everything that is drawn is the same each time. Here it is another key, stamp and seed each time.
# All of them take an hour: with KEEP=folder it goes on where an earlier one, of the same tests, was ended.
DRAWS ?= 20
LUCK ?= luck
luck: setup  ## the tests that rest on what is drawn, with other keys and seeds: how near they come to their limits
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python tests/harness/luck.py --draws $(DRAWS) -m '$(LUCK)' \
		$(if $(KEEP),--keep '$(KEEP)')

fuzz: setup  ## what Hypothesis checks, with other and twenty times as many examples each time
	$(PYTEST) -m hypothesis --hypothesis-profile=fuzz

$(VENV)/.docs: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	touch $@

docs: $(VENV)/.docs  ## the documentation as a site: site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# twine and Flower want different versions of the same package, so that it has an environment of its own.
RELEASE := build/release/bin
EXAMPLES := build/examples/bin
SHOTS := build/screenshots
# What needs the network, minutes, a browser or a notebook's kernel, and so is not part of `make test`: the wheel and
# the source archive are built and checked, the core is installed alone in a fresh environment, the notebook and the
# example for NVIDIA FLARE are run with the built wheel, the site and the live page of a training are looked at.
release-check: $(VENV)/.docs  ## build and check the wheel, install the core alone, run all examples, look at the pages
	test -x $(RELEASE)/python || $(PYTHON) -m venv build/release
	$(RELEASE)/python -m pip install --quiet --disable-pip-version-check 'build>=1.2' 'twine>=6'
	rm -rf dist
	$(RELEASE)/python -m build --outdir dist
	$(RELEASE)/python -m twine check --strict dist/*
	$(BIN)/python release/fresh_install.py dist
	test -x $(EXAMPLES)/python || $(PYTHON) -m venv build/examples
	$(EXAMPLES)/python -m pip install --quiet --disable-pip-version-check nvflare nbclient ipykernel \
		"sigil-watermark[train] @ file://$$(ls $(CURDIR)/dist/*.whl)"
	$(EXAMPLES)/python -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps dist/*.whl
	$(EXAMPLES)/python release/make_notebook.py examples/mark_and_verify.py build/mark_and_verify.ipynb
	$(EXAMPLES)/python release/run_nvflare.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/python release/look_at_site.py site $(SHOTS)
	$(BIN)/python release/look_at_live_page.py $(SHOTS)/live

# NVIDIA FLARE has an environment of its own, so that nothing here depends on what it asks for.
PEERS := build/peers/bin
DATA ?= $(HOME)/data
peers:  ## Sigil beside a plain loop, SplitFed and NVIDIA FLARE, in one run; CIFAR-10 is in DATA
	test -x $(PEERS)/python || $(PYTHON) -m venv build/peers
	$(PEERS)/python -m pip install --quiet --disable-pip-version-check nvflare --editable '.[all]'
	PYTHONPATH=tests $(PEERS)/python benchmarks/peers.py --data-dir $(DATA) --json benchmarks/results/peers.json

format: setup  ## format the sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove what was built
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
