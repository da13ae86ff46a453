# make train      trains PPO on Pong, which it wins; ARGS="--env breakout --seed 3" passes other settings, even --algo
# make test       runs the fast tests, in about 3 minutes on 2 cores (6 on old ones)
# make test-slow  runs the slow tests
# make test-all   runs all tests
# make test-gpu   runs the tests of the GPU code, on real GPUs
# make lint       checks style and types
# make docs       checks the documentation's links and examples, and builds it as a site in site/
# make dist       builds the package in dist/, checks its contents, and trains with it in an empty environment;
#                 PYTHONS="python3.12 python3.13" tries other Pythons
# Each target first installs what it needs in .venv, in the tested versions (constraints.txt).

PYTHON ?= python3
BIN := .venv/bin
ARGS ?=
# Three tests run at a time, with one thread each, since some wait for other processes. The tests of a file stay in one
# process, so its fixtures are set up once.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadfile

.PHONY: train test test-slow test-all test-gpu lint docs dist clean

train: .venv/ready
	$(BIN)/accel-rl train --algo ppo_small $(ARGS)

test: .venv/ready
	$(PYTEST) -m "not slow" $(ARGS)

test-slow: .venv/ready
	$(PYTEST) -m slow --gpu-order 1 $(ARGS)

test-all: .venv/ready
	$(PYTEST) $(ARGS)

test-gpu: .venv/ready
	$(PYTEST) -n 1 -m gpu --gpu real $(ARGS)

lint: .venv/ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

docs: .venv/ready
	$(BIN)/python .ci/check_docs.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

dist: .venv/ready
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python .ci/check_dist.py dist
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl
	$(BIN)/python .ci/test_wheel.py dist $(PYTHONS)

.venv/ready: setup.cfg pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "accel_rl needs Python 3.11 or newer; name one with: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache build dist site *.egg-info
