# Each target does its own set-up; a second run skips what is done.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LIGHT := .venv-light
KERNEL := build_kernel.py src/qkgcc/network/steered.c src/qkgcc/network/dispatch.c
INSTALL := -m pip install --disable-pip-version-check --quiet --constraint constraints.txt
PIP := $(BIN)/python $(INSTALL)

.PHONY: demo test test-all test-coverage test-kill test-light test-processors lint fuzz web bench samples clean

demo: $(VENV)/.demo ## delays of the bundled recording, and a picture of them
	$(BIN)/qkgcc demo --plot demo.png

test: $(VENV)/.test lint ## everything that must hold
	$(BIN)/pytest -n 2

# What a later issue adds joins this list.
test-all: test-light test-processors test-kill test-coverage ## what takes longer than `make test`
	$(MAKE) fuzz SECONDS=60

test-coverage: $(VENV)/.test ## every line of the package is run, or nearly
	$(BIN)/pytest -n 2 -m "" --cov --cov-report=term

test-light: $(LIGHT)/.installed ## what a user without torch can reach, in an environment of the light install and pytest
	$(LIGHT)/bin/pytest tests --pyargs qkgcc --doctest-ignore-import-errors --at-least 1500

test-processors: $(VENV)/.test ## numeric tests as on several processors (installs an emulator of ARM, where it may)
	$(BIN)/python tools/processors.py

lint: $(VENV)/.test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

SECONDS ?= 600
fuzz: $(VENV)/.test ## inputs of every kind, for SECONDS: each has to end in an answer or an InputError
	PYTHONPATH=tests $(BIN)/python -m fuzz --seconds $(SECONDS) $(if $(INPUTS),--inputs $(INPUTS)) $(if $(REPORT),--report $(REPORT))

test-kill: $(VENV)/.test ## jobs are killed at random moments, ten times each, and completed
	QKGCC_KILLS=10 $(BIN)/pytest tests/test_kill.py

web: $(VENV)/.test tools/onnx_web/node_modules/.package-lock.json ## exported files in WebAssembly (needs Node and npm)
	$(BIN)/pytest tests/test_onnx_web.py

tools/onnx_web/node_modules/.package-lock.json: tools/onnx_web/package.json
	npm install --prefix tools/onnx_web --no-package-lock --no-audit --no-fund
	touch $@

bench: $(VENV)/.test ## what things cost: tables into benchmarks/results, and a picture
	$(BIN)/python -m benchmarks.gcc
	$(BIN)/python -m benchmarks.rooms
	$(BIN)/python -m benchmarks.runtime
	$(BIN)/python -m benchmarks.standalone_speed
	$(BIN)/python -m benchmarks.directions
	$(BIN)/python -m benchmarks.places
	$(BIN)/python -m benchmarks.calibration

samples: $(VENV)/.test ## make the bundled recording again (needs espeak-ng)
	$(BIN)/python tools/make_samples.py

clean:
	rm -rf $(VENV) $(LIGHT) src/qkgcc/network/_kernel.so demo.png .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The light install: what using a model needs, and matplotlib.
$(VENV)/.demo: pyproject.toml constraints.txt $(KERNEL) | $(BIN)/python
	$(PIP) --editable '.[plot]'
	touch $@

$(VENV)/.test: pyproject.toml constraints.txt $(KERNEL) | $(BIN)/python
	$(PIP) --editable '.[dev]'
	touch $@ $(VENV)/.demo

# As a user's: no editable install, and torch nowhere near.
$(LIGHT)/.installed: pyproject.toml constraints.txt $(KERNEL) $(shell find src -name '*.py' -o -name '*.json' -o -name '*.toml' -o -name '*.safetensors' -o -name '*.onnx')
	$(PYTHON) -m venv $(LIGHT)
	$(LIGHT)/bin/python $(INSTALL) --force-reinstall . pytest hypothesis
	touch $@
