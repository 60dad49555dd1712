# `make reproduce` and `make test` need Python 3.11 or later and nothing else: they make `.venv` from requirements.lock.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
WORKERS ?= 2

.PHONY: help reproduce test bench explore lab lint clean distclean
help:
	@echo "make reproduce   execute every notebook; writes figures/ and data/tables/   (PROFILE=quick|full|paper|auto)"
	@echo "make test        all tests, and every notebook on profile quick"
	@echo "make bench       the benchmarks, as a table of ratios"
	@echo "make explore     ask the model about a sentence pair, in the browser"
	@echo "make lab         open the notebooks in JupyterLab"
	@echo "make lint        ruff"
	@echo "make clean       remove executed notebooks, mini models and caches (distclean: .venv too)"

reproduce: $(INSTALLED)
	$(BIN)/python -m bornlib reproduce $(if $(PROFILE),--profile $(PROFILE))

# one thread a worker: two single-thread workers are faster here than one with two threads
test: $(INSTALLED)
	MPLBACKEND=agg BORNLIB_PROFILE=quick OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile \
		--nbval-lax --nbval-sanitize-with tests/nbval_sanitise.cfg tests notebooks

bench: $(INSTALLED)
	$(BIN)/python -m tests.benchmarks

explore: $(INSTALLED)
	$(BIN)/python -m bornlib explore

lab: $(INSTALLED)
	$(BIN)/python -m jupyter lab notebooks

lint: $(INSTALLED)
	$(BIN)/python -m ruff check .

clean:
	rm -rf build .pytest_cache .ruff_cache
	find bornlib tests notebooks -name __pycache__ -o -name .ipynb_checkpoints | xargs rm -rf

distclean: clean
	rm -rf $(VENV) bornlib.egg-info

$(INSTALLED): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else f"Python 3.11 or later is needed, {sys.version.split()[0]} was found: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV): about 3 GB, some minutes, once"
	$(BIN)/python -m pip install -q --disable-pip-version-check "$$(grep '^torch==' requirements.lock)"
	$(BIN)/python -m pip install -q --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@
