# Everything sets itself up: Python 3.11+, make and a C++20 compiler are all it needs.
# VENV and BUILD may point elsewhere: make check VENV=... BUILD=...

VENV ?= .venv
BUILD ?= build
# More to install, for tests that need it: make check WITH=torch==2.13.0
WITH ?=
FUZZ_SECONDS ?= 60
PYTEST_ARGS ?=
PYTHON ?= $(firstword $(foreach p,python3 python3.14 python3.13 python3.12 python3.11,\
	$(shell $(p) -c 'import sys; sys.version_info >= (3, 11) and print("$(p)")' 2>/dev/null)))

BIN := $(VENV)/bin
# Without make's own flags, of which ninja would want a job server that it cannot reach.
CMAKE := MAKEFLAGS= $(BIN)/cmake
CTEST := $(BIN)/ctest --parallel $(shell nproc 2>/dev/null || echo 2) --output-on-failure
# Files side by side, a process a core, so PyTorch needs no more threads; a file's tests stay together
# and share what they made. In the order of their names: the fewest tests are not the quickest.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist loadfile --no-loadscope-reorder
# Where check makes the sdist and from it alone the wheel, and keeps the wheel's objects.
RELEASE := $(abspath $(BUILD))/release
CONFIGURE := $(CMAKE) -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -S .
# libFuzzer comes with clang; without it the fuzz targets run under a plain driver.
CLANG = $(if $(shell command -v clang++),-DCMAKE_CXX_COMPILER=clang++)
NATIVE := find engine -name '*.?pp' -print0 | xargs -0
# What the package is built from. Folders too: a removed or renamed file changes only its folder.
SOURCES := CMakeLists.txt pyproject.toml README.md LICENSE \
	$(shell find engine src \( -path engine/tests -o -path engine/fuzz -o -name __pycache__ \) \
		-prune -o -print)

define REQUIREMENTS
import sys, tomllib
with open("pyproject.toml", "rb") as f:
    project = tomllib.load(f)
extras = project["project"]["optional-dependencies"]
names = project["build-system"]["requires"] + project["project"]["dependencies"] + extras["dev"]
print("\n".join(names))
endef
export REQUIREMENTS

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help demo build test lint format layout engine-test sanitize release-test bench fuzz \
	gpu-test docs browser check clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /|/' | \
		while IFS='|' read -r name text; do printf '  %-12s %s\n' "$$name" "$$text"; done

demo: $(VENV)/installed ## Explain the trace that the package carries, then a recorded training run
	$(BIN)/tenure demo
	$(BIN)/tenure explain examples/gpt2_varlen.pickle.xz || test $$? -eq 1 # 1: it found something

build: $(VENV)/installed ## Build the package and install it into the virtual environment

test: $(VENV)/installed ## Run the Python tests, without the slow ones
	$(PYTEST) -m "not slow" $(PYTEST_ARGS)

lint: $(VENV)/ready ## Check formatting, style and types of Python and C++
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(NATIVE) $(BIN)/clang-format --dry-run --Werror

format: $(VENV)/ready ## Reformat Python and C++ in place
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(NATIVE) $(BIN)/clang-format -i

layout: $(VENV)/ready ## Check who imports whom, and the sizes of files and functions
	$(BIN)/pytest -q tests/test_layout.py

engine-test: $(VENV)/ready ## Build the engine without Python and run its own tests
	$(CONFIGURE) -B $(BUILD)/engine
	$(CMAKE) --build $(BUILD)/engine
	$(CTEST) --test-dir $(BUILD)/engine

sanitize: $(VENV)/ready ## Run the engine's tests under sanitizers: address, undefined behaviour, threads
	$(CONFIGURE) -B $(BUILD)/sanitize -DTENURE_SANITIZE=address,undefined
	$(CMAKE) --build $(BUILD)/sanitize
	$(CTEST) --test-dir $(BUILD)/sanitize
	$(CONFIGURE) -B $(BUILD)/threads -DTENURE_SANITIZE=thread
	$(CMAKE) --build $(BUILD)/threads --target engine_live_front_test
	$(CTEST) --test-dir $(BUILD)/threads -R live_front

release-test: $(RELEASE)/wheel ## Run the engine's tests on the objects that the wheel is made of
	$(CMAKE) --build $(RELEASE)/objects
	$(CTEST) --test-dir $(RELEASE)/objects

bench: $(VENV)/installed ## Run the benchmarks; one JSON line per case
	$(BIN)/python -m benchmarks

fuzz: $(VENV)/ready ## Fuzz each target for FUZZ_SECONDS (60), sanitizers on
	$(CONFIGURE) -B $(BUILD)/fuzz $(CLANG) -DTENURE_FUZZ=ON -DTENURE_SANITIZE=address,undefined
	$(CMAKE) --build $(BUILD)/fuzz --target fuzzers
	@for target in $(BUILD)/fuzz/fuzz_*; do \
		name=$${target##*/fuzz_}; corpus=$(BUILD)/fuzz/corpus/$$name; mkdir -p $$corpus; \
		seeds=engine/fuzz/corpus/$$name; [ -d $$seeds ] || seeds=; \
		echo "$$name"; $$target -max_total_time=$(FUZZ_SECONDS) $$corpus $$seeds || exit 1; \
	done

gpu-test: $(VENV)/installed ## Run the tests that need an NVIDIA GPU; each skip says what was missing
	$(BIN)/pytest -m gpu -rs $(PYTEST_ARGS)

docs: $(VENV)/docs ## Build the documentation into build/docs
	$(BIN)/sphinx-build -C -W -b html -D project=tenure -D extensions=myst_parser \
		-D html_theme=furo -D myst_heading_anchors=3 docs $(BUILD)/docs

browser: ## Install chromium for the page's tests, where root and apt allow it
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
		apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } || \
		echo "no chromium: the page's tests will be skipped"

# As `make -j2 check` side by side: a build keeps all cores busy, an installation or mypy just one.
check: lint sanitize release-test browser $(VENV)/with ## All of the above that needs no GPU, and all Python tests
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall \
		$(RELEASE)/tenure-*.whl
	TENURE_RELEASE=$(RELEASE) $(PYTEST) $(PYTEST_ARGS)

clean: ## Remove the virtual environment and everything built
	rm -rf $(VENV) $(BUILD) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

# --- set-up, redone only when what it depends on has changed -------------------------------------

$(VENV)/ready: pyproject.toml
	@test -n "$(PYTHON)" || { echo "tenure needs Python 3.11 or newer; none was found" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -c "$$REQUIREMENTS" > $(VENV)/requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r $(VENV)/requirements.txt
	touch $@

$(VENV)/with: $(VENV)/ready
	$(if $(WITH),$(BIN)/python -m pip install --quiet --disable-pip-version-check $(WITH))
	touch $@

$(VENV)/installed: $(VENV)/with $(SOURCES)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall \
		--no-build-isolation --config-settings=build-dir=$(abspath $(BUILD))/python .
	touch $@

# Anew each time: what an sdist unpacks to is older than the objects of the one before.
$(RELEASE)/wheel: $(VENV)/ready $(SOURCES)
	rm -rf $(RELEASE)
	mkdir -p $(RELEASE)/unpacked
	$(BIN)/python -c "from scikit_build_core.build import build_sdist; build_sdist('$(RELEASE)')"
	tar -xzf $(RELEASE)/tenure-*.tar.gz -C $(RELEASE)/unpacked --strip-components=1
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-index \
		--no-build-isolation --config-settings=build-dir=$(RELEASE)/objects \
		-w $(RELEASE) $(RELEASE)/unpacked
	touch $@

$(VENV)/docs: $(VENV)/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check sphinx myst-parser furo
	touch $@
