# make train   trains A2C on Pong; pass settings on with ARGS="--env breakout --steps 200000 --seed 3"
# make test    runs the test suite
# make lint    checks style and types
# Each sets up what it needs in .venv, with the versions that the tests have seen (constraints.txt).

PYTHON ?= python3
BIN := .venv/bin
ARGS ?=

.PHONY: train test lint clean

train: .venv/ready
	$(BIN)/accel-rl train $(ARGS)

test: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

lint: .venv/ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

.venv/ready: setup.cfg pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "accel_rl needs Python 3.11 or newer; name one with: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache build *.egg-info
