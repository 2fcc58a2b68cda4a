# Two commands: `make figure1` reproduces the paper's figure, `make test` checks everything. Each sets up what it needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SOURCES := src tests benchmarks examples

.PHONY: figure1 test docs lint types imports pytest format clean

figure1: $(VENV)/cli.stamp
	$(BIN)/ntkgp figure1 --out figure1

test: lint types imports pytest

docs: $(VENV)/docs.stamp
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)

types: $(VENV)/dev.stamp
	$(BIN)/pyright

imports: $(VENV)/dev.stamp
	$(BIN)/lint-imports

pytest: $(VENV)/dev.stamp
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --ignore tests/test_explorer_browser.py
	$(BIN)/python -m pytest tests/test_explorer_browser.py -n 0  # alone: it measures how fast the page answers

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

$(VENV)/docs.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[docs]'
	touch $@ $(VENV)/cli.stamp

clean:
	rm -rf $(VENV) figure1 build dist docs/_build docs/api docs/gallery
