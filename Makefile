# The targets of this project. `make demo` and `make test` set up all they need themselves.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup protos demo lint fmt native-tests test tsan tidy fuzz properties check bench performance lab soak lock proto-baseline clean

BIN := .venv/bin
JOBS := $(shell nproc)
# Most tests wait for processes most of the time; tests/conftest.py keeps the heaviest from running at once.
TEST_WORKERS := $(shell echo $$(($$(nproc) + 2)))
SECONDS_EACH = $(or $(SECONDS),60)
CPP_DIRS := dataplane/core tests/native tests/fuzz
CPP_FILES = $(shell find $(CPP_DIRS) -name '*.cpp' -o -name '*.hpp')
PY_DIRS := controlplane clustercli integration dataplane bench tests tools

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Install system packages (as root), .venv, the native build
	@tools/setup

protos: ## Generate the protobuf modules into build/gen
	@$(BIN)/python tools/protogen.py . build/gen

demo: setup ## The main job on this machine (REPORT=FILE TRACE=FILE REQUESTS=N)
	@$(BIN)/akv demo $(if $(REPORT),--report "$(REPORT)") $(if $(TRACE),--trace "$(TRACE)") \
	  $(if $(REQUESTS),--requests "$(REQUESTS)")

lint: setup ## ruff, mypy, import-linter, C++ includes, buf, clang-format
	@tools/lint

fmt: setup ## Format Python and C++
	$(BIN)/ruff check --fix $(PY_DIRS)
	$(BIN)/ruff format $(PY_DIRS)
	@$(BIN)/clang-format -i $(CPP_FILES)

native-tests: setup ## C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@tools/native-tests asan

test: lint native-tests ## Lint and all tests
	@$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder --durations 12

tsan: setup ## C++ tests under ThreadSanitizer
	@tools/native-tests tsan

tidy: ## clang-tidy over the C++ sources
	@tools/setup check
	@cmake -S . -B build/tidy -G Ninja -Wno-dev --log-level=WARNING -DAKV_PYTHON=ON \
	  -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python -DAKV_TESTS=ON >/dev/null
	@run-clang-tidy-14 -quiet -p build/tidy -j $(JOBS) '$(CURDIR)/dataplane/core/.*'

fuzz: ## Fuzz the native code's inputs, each target for SECONDS (60)
	@tools/setup check
	@tools/fuzz $(SECONDS_EACH)

properties: setup ## Property tests with new examples, 300 each where a test names no number
	@$(BIN)/python -m pytest -q -n $(JOBS) --hypothesis-profile search tests/unit

check: test tsan tidy fuzz properties ## What must be green before a change is done

bench: setup ## One figure of docs/performance.md (WHAT=NAME QUICK=1 REPEATS=5 OPTIONS=...); alone: their names
	@$(BIN)/python -m bench.figures $(or $(WHAT),--help) $(if $(QUICK),--quick) \
	  $(if $(REPEATS),--repeats $(REPEATS)) $(if $(TRACE),--trace "$(TRACE)") $(OPTIONS)

performance: ## Write tables and plots of docs/performance.md from the figures in build/bench
	@tools/setup plots
	@$(BIN)/python -m bench.figures.page build/bench docs/performance.md
	@$(BIN)/python -m bench.figures.plot build/bench docs/plots

lab: ## A real engine under the agent; the initiator against Linux nvmet in a virtual machine
	@tools/setup lab
	@tools/lab

soak: setup ## Random faults on network namespaces, as root (FAULTS=200 SEED=N)
	@AKV_FAULT_FULL=1 AKV_FAULTS=$(or $(FAULTS),200) AKV_FAULT_SEED=$(or $(SEED),$$(date +%s)) \
	  $(BIN)/python -m pytest -q -s tests/fault/test_table_random.py

lock: setup ## Write requirements.lock and requirements-plots.lock anew from pyproject.toml
	@tools/lock

proto-baseline: setup ## Accept the protos of today as what `buf breaking` compares with
	@$(BIN)/buf build --exclude-source-info -o protos/baseline.json

clean: ## Remove everything that was built (not .venv)
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find $(PY_DIRS) -name __pycache__ -type d -prune -exec rm -rf {} +
