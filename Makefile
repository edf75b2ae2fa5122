# Two commands do everything on a fresh machine with Python >= 3.11 (with venv), make and git:
#   make demo    set up, then the main job: a 2-node machine -> schedule -> XML, verified, simulated, run
#   make test    set up, then all tests
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SOURCES := $(shell find collsynth topologies algorithms backends bench -name '*.py' -o -name '*.json' -o -name py.typed)

.PHONY: demo test lint install clean

# Dependencies once; the package itself again whenever a source has changed.
$(BIN)/.dependencies: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check '.[all]'
	touch $@

$(BIN)/.installed: $(BIN)/.dependencies $(SOURCES)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall .
	touch $@

install: $(BIN)/.installed

demo: $(BIN)/.installed
	PATH="$(abspath $(BIN)):$$PATH" sh docs/demo.sh

test: $(BIN)/.installed
	$(BIN)/python -P -m pytest

lint: $(BIN)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	cd $(VENV) && bin/lint-imports ../pyproject.toml

clean:
	rm -rf $(VENV) build dist *.egg-info demo-output
