# Every target makes the virtual environment it needs; nothing but Python >= 3.11 and make is assumed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
RUNS   := $(VENV)/.runs
STAMP  := $(VENV)/.installed
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
export TOKENIZERS_PARALLELISM := false

.PHONY: demo test lint format types docs clean help

help:            ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(BIN)/python:
	@$(PYTHON) -m venv $(VENV)

# What it takes to run the program; torch is most of it.
$(RUNS): pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing into $(VENV); the first time this takes minutes, torch is large."
	$(PIP) --editable .
	@touch $@

# And to work on it.
$(STAMP): $(RUNS)
	$(PIP) --editable '.[dev]'
	@# lmms-eval wants torchvision, wandb and more; its registry and base class, which our adapter meets, need two.
	$(PIP) --no-deps lmms-eval loguru pytz
	@touch $@

# The style is checked without torch.
$(BIN)/ruff: | $(BIN)/python
	$(PIP) ruff

demo: $(RUNS)    ## run the main job on the packaged model
	$(BIN)/seewhen demo --out demo

test: $(STAMP)   ## run all tests (PYTEST_ARGS="-k where" for some)
	$(BIN)/python -m pytest -n 2 --dist worksteal $(PYTEST_ARGS)

lint: $(BIN)/ruff  ## ruff check and format check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(BIN)/ruff ## rewrite the code in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMP)  ## mypy, strict
	$(BIN)/mypy

docs: $(STAMP)   ## rewrite the pages that are made from the program
	$(BIN)/python docs/command_line.py
	$(BIN)/python docs/methods_page.py

clean:           ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
