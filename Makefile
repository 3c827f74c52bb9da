# Everything starts here: `make demo` and `make test` each work on a fresh machine with Python >= 3.11.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test bounds lint check bench soak clean

demo: $(INSTALLED)
	$(BIN)/curlicue demo

# one thread a process: models in tests are small, and threads that wait for each other crawl on a busy machine
test: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile

# compiled loops do not look where they read and write: here they do
bounds: $(INSTALLED)
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(VENV)/bounds OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 \
	  tests/engines tests/learn

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test bounds

bench: $(INSTALLED)
	$(BIN)/python benchmarks/step.py --out benchmarks/latest.json

soak: $(INSTALLED)
	OMP_NUM_THREADS=1 CURLICUE_SOAK=10000 $(BIN)/python -m pytest tests/test_soak.py tests/test_fuzz.py --timeout 7200

# constraints.txt pins every version this has been tested with; the packages' own metadata accepts a range.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "curlicue needs Python 3.11 or newer; set PYTHON=python3.11 (or newer)."; exit 1; }
	@echo "Installing into $(VENV), with all tools for development: some 2 GB, a few minutes."
	@$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
