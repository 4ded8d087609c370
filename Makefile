# Each target does all the set-up it needs in .venv and repeats cheaply.
VENV := .venv
PY := $(VENV)/bin/python
PYTEST := $(PY) -m pytest
ARGS ?=

.PHONY: serve test test-all lint setup setup-test native fuzz bench clean

setup: $(VENV)/.base
setup-test: $(VENV)/.test

$(VENV)/bin/python:
	python3 -m venv $(VENV)

$(VENV)/.base: pyproject.toml build_native.py | $(VENV)/bin/python
	$(PY) -m pip install --quiet --upgrade pip
	$(PY) -m pip install --quiet --editable .
	@touch $@

$(VENV)/.test: pyproject.toml build_native.py | $(VENV)/bin/python
	$(PY) -m pip install --quiet --upgrade pip
	$(PY) -m pip install --quiet --editable '.[test]'
	@touch $@ $(VENV)/.base

native: | $(VENV)/bin/python
	$(PY) build_native.py

serve: setup native
	$(VENV)/bin/imp serve $(ARGS)

lint: setup-test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy imp

test: setup-test native lint
	$(PYTEST) -n 2 $(ARGS)

test-all: setup-test native lint
	$(PYTEST) -n 2 -m 'not gpu and not network' $(ARGS)

clean:
	rm -rf $(VENV) build dist imp/imp_server/_native
