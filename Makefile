# Two commands matter: `make run` and `make test`. Both set up .venv first.
PYTHON ?= python3
BIN    := .venv/bin
READY  := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help setup run test check format clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 10

setup: $(READY)  ## create .venv and install everything into it

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade-strategy only-if-needed -c constraints.txt -e ".[dev]"
	@touch $@

run: $(READY)  ## find the hidden groups: FedAvg against WeCFL on digits (under a minute)
	@$(BIN)/wecfl run --method fedavg,wecfl

test: $(READY)  ## the whole test suite
	$(BIN)/python -m pytest -n auto

check: $(READY)  ## lint, formatting, strict types, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)  ## apply the formatter and the safe lint fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove .venv and caches
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist
