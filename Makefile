# What people type.  Nothing is needed before it but Python 3.11 or later: the first verb creates .venv and installs
# what it needs.  Arguments for the program behind a verb: make demo ARGS="--rows 20000".  With another Python, which has
# an environment of its own beside that: make test PYTHON=python3.14.

ifeq ($(origin PYTHON),undefined)
PYTHON := $(shell command -v python3.11 || command -v python3)
VENV := .venv
else
VENV := .venv-$(shell "$(PYTHON)" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
endif
BIN := $(VENV)/bin
ARGS ?=
CORE := aio cluster federation kernel node patterns security sync testing
EXTRAS := cli bridge doors dash metrics tracing protobuf
LOWEST := .venv-lowest
SEEDS ?= 20
HOURS ?= 1

# Where this is set, each process that is started compiles the whole of Iris anew: a third of a second.
unexport PYTHONDONTWRITEBYTECODE

.DELETE_ON_ERROR:
.PHONY: help demo test test-core test-lowest test-long check lint types layers coverage bench figures faults simulate membership docs dist release clean

help:
	@echo "make demo      the airport: every pattern and Spark on real data, with a check of every number"
	@echo "make test      all tests but the long variants"
	@echo "make test-core the tests of nodes alone, without Spark, doors and programs that others wrote: PYTHON=python3.14"
	@echo "make test-lowest  the same, with the oldest versions that pyproject.toml permits"
	@echo "make test-long the long variants of tests that make test runs with less"
	@echo "make check     lint, types, layers, tests"
	@echo "make coverage  tests, with the lines and branches that none of them reaches"
	@echo "make bench     Iris beside its peers, written to docs/explanation/benchmarks.md"
	@echo "make figures   the tables of docs/explanation that a command makes: ARGS=counts; and make bench"
	@echo "make simulate  every pattern, two sites and a bridge under faults: SEEDS=20 HOURS=1"
	@echo "make membership  membership under faults, thousands of nodes on one heap"
	@echo "make faults    real faults between network namespaces (Linux, root)"
	@echo "make docs      the site: build/site/index.html, with the reference, links and examples checked"
	@echo "make dist      wheel and sdist in dist/, checked; the wheel runs the first example in an empty environment"
	@echo "make release   the same, with SBOMs and signed checksums: IRIS_SIGNING_KEY=KEY IRIS_IMAGE=oci-archive:FILE"
	@echo "make clean     remove what the other verbs have made"

demo: $(VENV)/.ready-demo
	$(BIN)/iris demo $(ARGS)

# Without arguments by six processes, whatever the machine has: most of what takes long waits for other processes.
test: $(VENV)/.compiled
	$(BIN)/python -m pytest $(or $(ARGS),--numprocesses=6 --dist=loadgroup --max-worker-restart=0 --durations=25)

# In a fresh clone one process compiles the tests first, which six would do at the same time.  What it cannot import is
# said by the tests themselves.
$(VENV)/.compiled: $(VENV)/.ready-test
	@-$(BIN)/python -m pytest --collect-only -qq > /dev/null
	@touch $@

# What another version of Python is most likely to break, with a tenth of what make test installs.
test-core: $(VENV)/.ready-test-core
	$(BIN)/python -m pytest $(or $(ARGS),--numprocesses=4 --dist=loadgroup $(addprefix tests/,$(CORE)))

# With the oldest versions that pyproject.toml permits of what Iris itself and its extras need.
test-lowest: $(LOWEST)/.ready
	$(LOWEST)/bin/python -m pytest $(or $(ARGS),--numprocesses=4 --dist=loadgroup $(addprefix tests/,$(CORE)))

$(LOWEST)/.ready: pyproject.toml
	"$(PYTHON)" -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --disable-pip-version-check --quiet uv
	$(LOWEST)/bin/uv pip compile --quiet --resolution lowest-direct $(addprefix --extra ,$(EXTRAS)) pyproject.toml -o $(LOWEST)/all.txt
	grep -v '^iris-mesh' $(LOWEST)/all.txt > $(LOWEST)/oldest.txt
	VIRTUAL_ENV=$(LOWEST) $(LOWEST)/bin/uv pip install --quiet --editable '.[test-core]' --constraints $(LOWEST)/oldest.txt
	@touch $@

# With Spark as it is, without what makes it quick for tests of a few rows; and without stacks after 120 s: many of
# these take longer, and to print them while Python runs may crash it.
test-long: $(VENV)/.ready-test
	SPARK_CONF_DIR= $(BIN)/python -m pytest -m long -o faulthandler_timeout=0 $(ARGS)

check: lint types layers test

lint: $(VENV)/.ready-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/.ready-dev
	$(BIN)/mypy
	$(BIN)/basedpyright --pythonpath $(BIN)/python

layers: $(VENV)/.ready-dev
	$(BIN)/lint-imports

coverage: $(VENV)/.ready-test
	$(BIN)/coverage run -m pytest $(ARGS)
	$(BIN)/coverage report

bench: $(VENV)/.ready-bench
	$(BIN)/python -m benchmarks $(ARGS)
	$(if $(ARGS),,$(BIN)/python -m benchmarks.bridge rates)

# The tables that one word names, or all of them and those of make bench.
figures: $(VENV)/.ready-bench
	$(BIN)/python -m benchmarks.figures $(ARGS)
	$(if $(ARGS),,$(MAKE) bench)

faults: $(VENV)/.ready-test
	$(BIN)/python -m pytest -m faults -o faulthandler_timeout=0 $(ARGS)

simulate: $(VENV)/.ready-test
	$(BIN)/python -m benchmarks.simulation --seeds $(SEEDS) --hours $(HOURS) $(ARGS)

membership: $(VENV)/.ready-test
	$(BIN)/python -m benchmarks.membership $(ARGS)

docs: $(VENV)/.ready-docs
	$(BIN)/python -m docs.build $(ARGS)

# The wheel is tried where nothing is but what it asks for itself, and away from this tree; its command with that extra.
# It is built of the tree, and once more of the sdist elsewhere: both are the same, bit by bit.  Setuptools writes its
# version into them, so that is fixed.
dist: BUILD = PIP_CONSTRAINT="$(CURDIR)/distribution/constraints.txt" $(BIN)/python -m build
dist: $(VENV)/.ready-dist
	rm -rf dist build/lib build/bdist.* build/empty build/again
	$(BUILD) --outdir dist --sdist --wheel .
	umask 077 && $(BUILD) --outdir build/again .
	cmp dist/*.tar.gz build/again/*.tar.gz && cmp dist/*.whl build/again/*.whl
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl
	"$(PYTHON)" -m venv build/empty
	build/empty/bin/python -m pip install --disable-pip-version-check --quiet dist/*.whl
	cd build/empty && test "$$(bin/python -P ../../examples/tutorial/first.py)" = "hello world, from desk"
	build/empty/bin/python -m pip install --disable-pip-version-check --quiet "$$(echo dist/*.whl)[cli]"
	build/empty/bin/iris --version

release: dist
	distribution/release.sh "$(CURDIR)/$(BIN)/cyclonedx-py" "$(CURDIR)/build/empty/bin/python"

clean:
	rm -rf .venv .venv-* build dist *.egg-info .coverage .coverage.* htmlcov .pytest_cache .mypy_cache .ruff_cache \
		.import_linter_cache .hypothesis spark-warehouse metastore_db
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp for each set of extras; a changed pyproject.toml installs again.
$(VENV)/.ready-%: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --disable-pip-version-check --editable '.[$*]'
	@touch $@

$(BIN)/python:
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "iris: Python 3.11 or later is needed (make PYTHON=/path/to/python3.11)" >&2; exit 1; }
	@"$(PYTHON)" -m venv $(VENV) \
		|| { rm -rf $(VENV); echo "iris: Python's venv module does not work here (Debian: apt install python3-venv)" >&2; exit 1; }
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --upgrade pip
