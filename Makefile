# `make figure1` reproduces the paper's figure, `make test` checks everything, `make quick` the core in less than a minute.
# Each sets up what it needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SOURCES := src tests benchmarks examples
BROWSER := tests/apps/explorer/browser
LONG := $(addprefix tests/reliability/,bad_input test_properties.py test_conditioning.py test_memory.py test_fuzz_files.py \
  test_faults.py test_concurrency.py)
CORE := $(addprefix tests/,linalg tangent networks problem system posterior/exact \
  posterior/test_prediction.py posterior/lowrank/test_lowrank.py)
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --dist worksteal
# $(call beside,targets,target): runs the targets beside the last one, whose output is shown as it comes, and theirs after it.
# Fails if any of them fails.
beside = log=$$(mktemp); $(MAKE) --no-print-directory --keep-going $(1) >$$log 2>&1 & others=$$!; \
  $(MAKE) --no-print-directory $(2); main=$$?; wait $$others; rest=$$?; cat $$log; rm -f $$log; exit $$((main || rest))
MINUTES ?= 60
MATRIX ?= 2.6:3.10 2.11:3.11 2.11:3.12 2.13:3.11 2.13:3.12 2.13:3.13
# What the tests need beside torch, NumPy and the extras: for a machine that has these but no network.
CARRIED := pytest pluggy iniconfig packaging pygments hypothesis sortedcontainers attrs jaxtyping wadler-lindig beartype mpmath \
  tqdm safetensors pytest-xdist execnet

# What the alternatives are made with. Without what it asks for: laplace-torch lists torchvision, does not need it, and would
# bring another torch.
ALTERNATIVES := laplace-torch asdfghjkl backpack-for-pytorch curvlinops-for-pytorch einconv einops lightning-utilities torchmetrics \
  unfoldNd pyro-ppl pyro-api opt_einsum
DATA ?= data

.PHONY: figure1 test quick core test-long test-matrix soak wheels alternatives docs lint types imports pytest browser format clean

figure1: $(VENV)/cli.stamp
	$(BIN)/ntkgp figure1 --out figure1 --force

# The static checks and the browser run beside the other tests; what they say is shown at the end.
test: lint $(VENV)/alternatives.stamp
	@$(call beside,types imports browser,pytest)

# For the inner loop: lint, types, layers and the tests of the core.
quick: lint
	@$(call beside,types imports,core)

# The long forms of the tests of reliability, less than an hour: counts go to benchmarks/results/robustness.jsonl.
test-long: $(VENV)/dev.stamp
	NTKGP_LONG=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile $(LONG)

# The tests under other versions, torch:Python; those that are not on this machine are skipped and named.
test-matrix:
	$(PYTHON) tests/reliability/matrix.py $(MATRIX)

# Packages in a folder: PYTHONPATH=.wheels:src:. python -m pytest
wheels: $(VENV)/dev.stamp
	$(BIN)/python -m pip install -q --no-deps --upgrade --target .wheels -c constraints.txt $(CARRIED)

# Random work for MINUTES, invariants checked and memory watched all the time.
soak: $(VENV)/dev.stamp
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.reliability.soak --minutes $(MINUTES) --keep

# Every method of docs/alternatives.md on one split, minutes: make alternatives DATA=folder of the UCI sets
alternatives: $(VENV)/alternatives.stamp
	$(BIN)/python -m benchmarks.studies.alternatives --data-dir $(DATA) --small --jobs 2

docs: $(VENV)/docs.stamp
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)

types: $(VENV)/dev.stamp
	$(BIN)/pyright

imports: $(VENV)/dev.stamp
	$(BIN)/lint-imports

pytest: $(VENV)/dev.stamp $(VENV)/alternatives.stamp
	$(PYTEST) --ignore $(BROWSER)

core: $(VENV)/dev.stamp
	$(PYTEST) $(CORE)

# One window for all of them.
browser: $(VENV)/dev.stamp
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 0 $(BROWSER)

format: $(VENV)/dev.stamp
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/cli.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[cli]'
	touch $@

$(VENV)/dev.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	touch $@ $(VENV)/cli.stamp

$(VENV)/alternatives.stamp: constraints.txt | $(VENV)/dev.stamp
	$(BIN)/python -m pip install -q --no-deps -c constraints.txt $(ALTERNATIVES)
	touch $@

$(VENV)/docs.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[docs]'
	touch $@ $(VENV)/cli.stamp

clean:
	rm -rf $(VENV) .matrix .wheels figure1 build dist docs/_build docs/api docs/gallery
