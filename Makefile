# Each target does its own set-up; a second run skips what is done.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
KERNEL := build_kernel.py src/qkgcc/inference/steered.c src/qkgcc/inference/dispatch.c
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt

.PHONY: demo test lint web bench samples clean

demo: $(VENV)/.demo ## delays of the bundled recording, and a picture of them
	$(BIN)/qkgcc demo --plot demo.png

test: $(VENV)/.test lint ## everything that must hold
	$(BIN)/pytest -n 2 --cov --cov-report=term

lint: $(VENV)/.test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

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
	rm -rf $(VENV) src/qkgcc/inference/_kernel.so demo.png .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The light install: what using a model needs, and matplotlib.
$(VENV)/.demo: pyproject.toml constraints.txt $(KERNEL) | $(BIN)/python
	$(PIP) --editable '.[plot]'
	touch $@

$(VENV)/.test: pyproject.toml constraints.txt $(KERNEL) | $(BIN)/python
	$(PIP) --editable '.[dev]'
	touch $@ $(VENV)/.demo
