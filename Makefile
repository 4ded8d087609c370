# Each target does all the set-up it needs in .venv and repeats cheaply.
#   make serve ARGS="--port 9000"    make test ARGS="tests/cli -x"
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --quiet --disable-pip-version-check install
PYTEST := $(PY) -m pytest
ARGS ?=

# make codex, make claude-code: the real program from npm against a scripted model
.PHONY: serve test test-all fuzz codex claude-code lint setup setup-test native docs clean

setup: $(VENV)/.base
setup-test: $(VENV)/.test

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "imp needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)

# The kernels come first: pip would build them, too, but says nothing while it does.
$(VENV)/.base: pyproject.toml build_native.py | $(PY)
	@$(PY) build_native.py
	$(PIP) --editable .
	@touch $@

# Where the package index has a CPU build of torch, its local version is the newer one and pip takes it.
$(VENV)/.test: pyproject.toml build_native.py | $(PY)
	@$(PY) build_native.py
	$(PIP) --editable '.[test]'
	@touch $@ $(VENV)/.base

native: | $(PY)
	@$(PY) build_native.py

serve: setup native
	$(VENV)/bin/imp serve $(ARGS)

lint: setup-test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy imp

test: lint native
	$(PYTEST) -n 2 $(ARGS)

test-all: lint native
	$(PYTEST) -n 2 -m 'not gpu and not network' $(ARGS)

fuzz: setup-test native
	$(PYTEST) -m slow tests/contracts --fuzz-seed $$(date +%Y%m%d) $(ARGS)

codex: setup-test
	npm install --prefix build/codex --no-audit --no-fund --loglevel=error @openai/codex
	CODEX=$(CURDIR)/build/codex/node_modules/.bin/codex $(PYTEST) -m slow tests/live/test_codex_binary.py $(ARGS)

claude-code: setup-test
	npm install --prefix build/claude-code --no-audit --no-fund --loglevel=error @anthropic-ai/claude-code
	CLAUDE_CODE=$(CURDIR)/build/claude-code/node_modules/.bin/claude $(PYTEST) -m slow tests/live/test_claude_code_binary.py $(ARGS)

docs: setup
	$(VENV)/bin/imp config docs > docs/config.md

clean:
	rm -rf $(VENV) build dist imp/imp_server/_native
