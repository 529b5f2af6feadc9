# Every target makes the virtual environment it needs; nothing but Python >= 3.11 and make is assumed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
export TOKENIZERS_PARALLELISM := false

.PHONY: demo test lint format types docs clean help

help:            ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@# lmms-eval wants torchvision, wandb and more; its registry and base class, which our adapter meets, need two.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps lmms-eval loguru pytz
	@touch $(STAMP)

demo: $(STAMP)   ## run the main job on the packaged model
	$(BIN)/seewhen demo --out demo

test: $(STAMP)   ## run all tests (PYTEST_ARGS="-k where" for some)
	$(BIN)/python -m pytest -n 2 --dist worksteal $(PYTEST_ARGS)

lint: $(STAMP)   ## ruff check and format check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP) ## rewrite the code in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMP)  ## mypy, strict
	$(BIN)/mypy

docs: $(STAMP)   ## rewrite the pages that are made from the program
	$(BIN)/python docs/command_line.py
	$(BIN)/python docs/methods_page.py

clean:           ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
