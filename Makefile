# One command each; README.md says what they do. Everything that is installed is locked with hashes.
#   make demo PYTHON=python3.13 VENV=.venv-3.13      the demo under another Python, in an environment of its own
#   make demo CLIENT=official                        the demo with the official x402 clients as buyers
#   make test PYTEST="-m long tests/core"            more words for pytest
#   make test ENGINE=postgresql                      stores, gateway and hub on PostgreSQL; `make test` has their races and kills
#   make bench NAME=start                            one benchmark
PYTHON ?= python3
VENV ?= .venv
CLIENT ?=
NAME ?=
ENGINE ?=
JOBS ?= 8
DIST ?= $(CURDIR)/dist
PYTEST ?=

bin := $(abspath $(VENV))/bin
pip := $(bin)/python -m pip --disable-pip-version-check --no-input --quiet
# The interoperability environments are built with this environment's Python.
interop := PYTHON=$(bin)/python scripts/with-node tests/interop/setup

# Tests of stores, races, bindings and kills, which run behind both engines, and all that take the one that is named.
on_both = $(addprefix tests/storage/test_,nodes.py statements.py purchases.py ledger.py ledger_kills.py) tests/exact \
  $(addprefix tests/gateway/test_,races.py credit_binding.py two_gateways.py) tests/auth/test_races.py \
  tests/hub/test_restart.py
of_engine = $(addprefix tests/,auth exact gateway hub specification storage)
tests = scripts/with-node $(bin)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(PYTEST)

# Settings of the machine that would change what is installed or imported. (Where it comes from stays the machine's.)
unexport PIP_FIND_LINKS PIP_NO_INDEX PIP_NO_BINARY PIP_ONLY_BINARY PIP_PRE PIP_CONSTRAINT PIP_REQUIREMENT
unexport PIP_REQUIRE_HASHES PIP_REQUIRE_VIRTUALENV PIP_USER PIP_TARGET PIP_PREFIX PIP_ROOT PIP_NO_DEPS
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV
# Tests start the program over a thousand times, which must not compile it each time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test faults exact nodes check golden screenshots bench dist deploy-check lock clean interop-setup
.DELETE_ON_ERROR:

setup: $(VENV)/.dev interop-setup

demo: $(VENV)/.sandbox
	$(if $(filter official,$(CLIENT)),@$(interop) x402-1.0.0 x402-2.25.0 npm)
	@$(if $(filter official,$(CLIENT)),scripts/with-node )$(bin)/tollkeeper demo $(if $(CLIENT),--client $(CLIENT))

# The core's own tests run beside the others, in a process that sees that they cover every branch of it. Beside them
# runs what is run behind both engines, behind PostgreSQL; it waits more than it computes, and what it prints comes last.
# All is compiled first: else each job would compile what it imports.
test: setup
	@mkdir -p .cache
	@$(bin)/python -m compileall -q -j 2 -x '/test_' src tests
ifneq ($(PYTEST)$(ENGINE),)
	@$(if $(ENGINE),ENGINE=$(ENGINE) )$(tests) $(if $(ENGINE),$(of_engine))
else
	@ENGINE=postgresql $(tests) -n 3 $(on_both) >.cache/on-postgresql 2>&1 & beside=$$!; \
	trap 'kill $$beside; wait' INT TERM; $(tests) -p tests.core_beside; ended=$$?; \
	wait $$beside || ended=1; cat .cache/on-postgresql; exit $$ended
endif

# The long forms of what kills, cuts, forks, fills and hangs, and how many faults came: hours on two cores. The short
# ones are in `make test`.
faults: export HISTORY_CALLS = 1000000
faults: setup exact nodes
	@scripts/with-node $(bin)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -m long \
	  --durations=20 $(PYTEST) tests/faults tests/storage/test_ledger_kills.py \
	  tests/chains/test_solana_answers.py tests/gateway/test_hostile_targets.py tests/deploy

# Many programs on one PostgreSQL, on hosts of their own: network namespaces, so as root. `make faults` has them, too.
nodes: setup
	@scripts/with-node $(bin)/python -m pytest -m long --durations=20 $(PYTEST) tests/nodes

# Programs that share PostgreSQL, as exact as one writer: some minutes, each property also without what it needs.
exact: setup
	@ENGINE=postgresql scripts/with-node $(bin)/python -m pytest -q -m "" $(PYTEST) tests/exact

check: $(VENV)/.dev
	$(bin)/ruff check .
	$(bin)/ruff format --check .
	$(bin)/mypy --strict
	$(bin)/lint-imports --no-cache

# What goes out today, written anew into tests/golden/texts; `git diff` shows what is another than before.
golden: setup
	@GOLDEN=rewrite scripts/with-node $(bin)/python -m pytest -q tests/golden

bench: setup
	@PYTHONPATH=. scripts/with-node $(bin)/python -m bench $(NAME)

# Wheel and sdist. Of one commit they are the same bytes each time: they bear the commit's date.
dist: $(VENV)/.sandbox
	@mkdir -p $(DIST) && rm -f $(DIST)/tollkeeper-*
	@SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(bin)/python -c \
	  'from flit_core.buildapi import *; print(build_sdist("$(DIST)"), build_wheel("$(DIST)"))'

# Whether what deploy/ holds is right, by the tools of those who read it.
deploy-check: $(VENV)/.dev
	@scripts/deploy-check

# Every page at three widths, light and dark, to look at.
screenshots: setup
	@PYTHONPATH=. scripts/with-node $(bin)/python -m tests.web.screenshots .cache/screenshots

interop-setup: $(VENV)/.dev
	@$(interop)
	@PYTHON=$(bin)/python scripts/with-node tests/chains/setup

lock: $(VENV)/.dev
	UV=$(bin)/uv scripts/lock --upgrade

clean:
	rm -rf .venv .venv-* .cache .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps: each step is done again only when its lock has changed.
$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Tollkeeper needs Python 3.11 or later: make PYTHON=/path/to/python3")'
	@echo "Creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.sandbox: $(VENV)/.created requirements/sandbox.txt pyproject.toml
	@echo "Installing what runs (requirements/sandbox.txt)"
	@$(pip) install --require-hashes -r requirements/sandbox.txt
	@$(pip) install --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.sandbox requirements/dev.txt
	@echo "Installing what tests and checks (requirements/dev.txt)"
	@$(pip) install --require-hashes -r requirements/dev.txt
	@touch $@
