# Needs Python 3.11 or newer with pip, and make. The first call of a target makes .venv.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --root-user-action=ignore
PURE := tests/core tests/author tests/store tests/worker tests/house tests/test_docs.py
CODE := $(wildcard aioflow triggers/aioflow_triggers tests benchmarks examples)
LINT := $(MAKE) --no-print-directory --jobs 2 --output-sync=target lint

# Where this is set, each of the thousands of processes of a test run compiles the program anew.
export PYTHONDONTWRITEBYTECODE :=

# What the fault kit injects failures with; without root, or without them, its tests fail.
FAULT_TOOLS := command -v strace gcc >/dev/null || test "$$(id -u)" != 0 || { \
    apt-get update && apt-get install --yes --no-install-recommends strace gcc libc6-dev; }

# What looks at the page in tests. Without root it has to be there.
BROWSER := command -v chromium >/dev/null || test "$$(id -u)" != 0 || { \
    apt-get update && apt-get install --yes --no-install-recommends chromium fonts-dejavu-core; }

# Whose completion is tested.
SHELLS := command -v zsh >/dev/null && command -v fish >/dev/null || test "$$(id -u)" != 0 || { \
    apt-get update && apt-get install --yes --no-install-recommends zsh fish; }

.PHONY: run check test nightly pure lint types mypy pyright style layers modules docs bench peers dist ui ui-check clean

# The daemon with the example DAGs, one run shown live, and today's file for further ones.
run: .venv/.run
	$(BIN)/python examples/settlement_data.py
	$(BIN)/python -m aioflow demo --home "$${AIOFLOW_HOME:-$$HOME/.aioflow}" --port 8793

# The first ring, below a minute: what to run after each step. docs/testing.md describes all three.
# Pyright remembers nothing between two calls, and only checks the types that users see.
check: .venv/.all
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target style mypy layers pure

# The second ring: everything, sampled where it takes long, on the event loop that ships.
# Three workers for two processors, because many cases wait. Style and types are checked meanwhile.
test: .venv/.all
	@$(FAULT_TOOLS)
	@$(BROWSER)
	@$(SHELLS)
	@nice $(LINT) & checks=$$!; \
	    trap 'kill $$checks 2>/dev/null' EXIT; trap 'exit 130' INT TERM; \
	    $(BIN)/python -m pytest -n 3 --dist loadgroup || exit; \
	    wait $$checks || { echo "make lint has failed: its output is above."; exit 1; }

# The third ring: both event loops, all seeds, kills, faults and planted bugs. Takes hours.
nightly: .venv/.all lint
	@$(FAULT_TOOLS)
	@$(BROWSER)
	@$(SHELLS)
	$(BIN)/python -m tests.nightly $(PARTS)

pure: .venv/.all
	$(BIN)/python -m pytest -n 2 -m "not (nightly or process or postgres or browser)" $(PURE)

lint: types style layers

style: .venv/.all
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/deptry aioflow triggers

layers: .venv/.all
	$(BIN)/lint-imports

# Two targets: each takes about as long as all other checks of the code together.
types: mypy pyright

mypy: .venv/.all
	$(BIN)/mypy $(CODE)

pyright: .venv/.all
	$(BIN)/pyright

# The list of modules in docs/, out of their docstrings.
modules: .venv/.all
	$(BIN)/python -m tests.house.module_list

# The documentation site, in build/site; a link that leads nowhere fails it.
docs: .venv/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: .venv/.all
	$(BIN)/python -m benchmarks

# Other systems beside aioflow, in environments of their own; 90 minutes on an idle machine.
# SYSTEM=dbos,prefect and FIGURE=chain,waits run some cells.
peers: .venv/.all
	$(BIN)/python -m benchmarks.peers $(if $(SYSTEM),--system $(SYSTEM)) $(if $(FIGURE),--figure $(FIGURE))

# The wheel and the source distribution, and the wheel of aioflow-worker, in dist/.
dist: | .venv/.pip
	$(PIP) --group dist --constraint constraints.txt
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m build --wheel --outdir dist packaging/worker
	$(BIN)/twine check --strict dist/*

# The page, out of ui/ into the package; what is built is committed. Needs Node.js with npm.
ui: ui/node_modules
	cd ui && npm run build

# Whether that has been done. Without npm nobody can have changed it.
ui-check:
	@command -v npm >/dev/null || { echo "No npm: the built page is not compared."; exit 0; }; \
	    $(MAKE) --no-print-directory ui/node_modules && built=$$(mktemp -d) && \
	    (cd ui && npm run check && npx vite build --logLevel warn --emptyOutDir --outDir "$$built") && \
	    diff -r "$$built" aioflow/web/static && rm -r "$$built"

ui/node_modules: ui/package.json ui/package-lock.json
	cd ui && npm ci
	@touch $@

clean:
	rm -rf ui/node_modules .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist

# What was installed stays good until pyproject.toml or the pins change.

.venv/.run: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "Installing aioflow into .venv ..."
	$(PIP) --editable . --constraint constraints.txt
	@touch $@

# Most of its modules are never imported. Python compiles those that are, at their first import.
.venv/.all: pyproject.toml constraints.txt | .venv/.pip
	@echo "Installing aioflow with everything its tests need into .venv ..."
	$(PIP) --no-compile --editable '.[postgres,http,objects,dask,plot,testing]' --group dev --constraint constraints.txt
	@touch .venv/.run $@

.venv/.docs: pyproject.toml constraints.txt | .venv/.pip
	@echo "Installing aioflow and what builds its documentation into .venv ..."
	$(PIP) --editable . --group docs --constraint constraints.txt
	@touch $@

# Dependency groups are newer than the pip that Python 3.11 brings.
.venv/.pip: constraints.txt | $(BIN)/pip
	$(PIP) 'pip>=25.1' --constraint constraints.txt
	@touch $@

# Debian keeps the venv module in a package of its own.
$(BIN)/pip:
	$(PYTHON) -m venv .venv || { \
	    apt-get update && apt-get install --yes --no-install-recommends python3-venv && \
	    $(PYTHON) -m venv --clear .venv; }
