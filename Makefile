# make demo   train a small vision transformer on handwritten digits and verify it
# make test   the whole test suite
# make trials fuzz, kills and whole grids; LENGTH=0.1 a tenth, SEED=1 other draws
# make lint   formatting, lint and types
# make check  make lint, then the fast tests
# make docs   the documentation as a site, in build/docs; a warning is an error
# make bench  measurements against peers, by turns, into benchmarks/RESULTS.md; bench-quick: within 3 minutes

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
LENGTH ?= 1
SEED ?= 0
SETTINGS := pyproject.toml constraints.txt

.PHONY: demo test trials lint check bench bench-quick docs clean

demo: $(VENV)/.demo
	$(BIN)/isomorph show examples/digits_vit.net
	$(BIN)/isomorph train examples/digits_vit.net --data digits --backend nnx --out runs/digits --threads 1 --force
	$(BIN)/isomorph verify runs/digits/model.safetensors

test: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

trials: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "trial or exhaustive" --trials $(LENGTH) --trial-seed $(SEED)

lint: $(VENV)/.test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

check: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not exhaustive"

bench: | $(BIN)/python
	$(BIN)/python benchmarks/suite.py

bench-quick: | $(BIN)/python
	$(BIN)/python benchmarks/suite.py --quick

docs: $(VENV)/.docs
	$(BIN)/isomorph docs --out docs/operators --force
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/docs

clean:
	rm -rf $(VENV) .cache build dist

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "isomorph needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(SETTINGS) | $(BIN)/python
	$(PIP) --editable '.[flax,train]'
	touch $@

$(VENV)/.test: $(SETTINGS) | $(BIN)/python
	$(PIP) --editable '.[torch,flax,train,onnx,dev]'
	touch $@

$(VENV)/.docs: $(SETTINGS) | $(BIN)/python
	$(PIP) --editable '.[docs]'
	touch $@
