# Two commands: `make table` and `make test`. Both make the environment they need, once.
STUDY ?= # without one: quick
CORES ?= all
PYTEST ?= -n auto --dist loadfile

TARGET := $(if $(STUDY),--config study=$(STUDY) -- results/table.md,results/table_main.md)

# The first table of a page, without its notes and entities, columns still in line
PLAIN = '/^\* /q; s/^\| (&nbsp;){3}([^|]*)\|/|    \2               |/; s/\| ([^|]*)<sup>=<\/sup>/|            \1=/g; p'

# Finds the modules that import a part of the standard library, or psutil, some of whose calls only Linux has
SYSTEM = '^ *(import|from) (ctypes|fcntl|mmap|os|psutil|resource|select|signal|socket|termios)( |\.|$$)'

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The first interpreter that is new enough; name another with PYTHON=...
PYTHON ?= $(shell for p in python3 python3.12 python3.11 python3.13; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

# An environment knows where it is: commands of one that was moved, or copied with the project, would not start, or be
# those of the original. The stamp holds the place; with another one in it, the environment is made anew
MOVED := $(shell test -e $(STAMP) && test "$$(cat $(STAMP))" != "$(CURDIR)" && echo moved)

# For what the commands below start; make itself may look for commands in the PATH that it was started with
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: help install table test quicktest lint darwin format schema clean
.DEFAULT_GOAL := help

help: ## show this
	@awk -F ':[^#]*## ' '/^[a-z]+:.*## / { printf "%-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo 'Variables: STUDY=$(or $(STUDY),quick) CORES=$(CORES) PYTHON=$(PYTHON) PYTEST="$(PYTEST)"'

install: $(STAMP) ## make the environment, and nothing else

table: $(STAMP) ## run a study, or what is left of it, and render its first table: make table STUDY=smoke
	@for folder in "$${XDG_CACHE_HOME:-$$HOME/.cache}" .snakemake results; do \
		mkdir -p "$$folder" 2>/dev/null && test -w "$$folder" || { \
		echo "$$folder cannot be written: work in a copy of the project that is yours; for a cache, set HOME, or" \
			"XDG_CACHE_HOME, HF_HOME and MPLCONFIGDIR, to folders that can be written"; exit 1; }; done
	$(BIN)/snakemake --cores $(CORES) $(TARGET)
	@sed -nE $(PLAIN) $(lastword $(TARGET))
	@echo 'Its notes and details: $(lastword $(TARGET))'

test: $(STAMP) ## lint, then run the tests
	$(MAKE) --jobs 2 lint darwin
	$(BIN)/pytest $(PYTEST)

quicktest: $(STAMP) ## run the tests that need no workflow, no ranks and hardly any training
	$(BIN)/pytest $(PYTEST) -m 'not slow'

lint: $(STAMP) ## check format, style and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

# The types of macOS, as far as they differ
darwin: $(STAMP)
	$(BIN)/pyright --pythonplatform Darwin $$(grep -lrE --include='*.py' $(SYSTEM) benchmarks methods)

format: $(STAMP) ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

schema: $(STAMP) ## write the JSON schema of study files anew, after a change of the models
	$(BIN)/python workflows/schemas/generate.py

clean: ## remove the environment and caches; results stay
	rm -rf $(VENV) .pytest_cache .ruff_cache *.egg-info

$(STAMP): pyproject.toml constraints.txt $(if $(MOVED),moved)
	@test -n "$(PYTHON)" || { echo 'Python 3.11 or newer is needed and was not found; name it: make PYTHON=/path/to/python3.11'; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo '$(PYTHON) is older than Python 3.11'; exit 1; }
	$(PYTHON) -m venv $(if $(MOVED),--clear) $(VENV) || { echo 'On Debian and Ubuntu, venv is a package of its own: apt install python3-venv'; exit 1; }
	@echo 'Installing the pinned packages: about two minutes with the CPU build of torch, longer with CUDA libraries.'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@echo "$(CURDIR)" > $@

.PHONY: moved
moved:
	@echo 'The project was moved, or its environment is not of this folder: $(VENV) is made anew.'
