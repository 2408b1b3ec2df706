# Every target sets up what it needs: .venv, uv, and the versions pinned in constraints.txt.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/.ready
# Kept also where the environment says otherwise: else every process compiles all modules again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench serve browser clean

help: ## Show this list.
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: $(READY) ## Train, measure and attack small ViTs, plain and with MJP; names the page it made.
	$(BIN)/mjp demo

serve: $(READY) ## A page to try attacks and defences on your own picture, on this machine.
	$(BIN)/mjp serve

test: lint browser ## Run everything that has to hold before a change is trusted.
	OMP_NUM_THREADS=1 MJP_SHAPE_CHECKS=1 $(BIN)/pytest -q -n 2 --dist loadfile -m "not slow and not unchecked"
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 2 --dist loadfile -m "unchecked and not slow"

lint: $(READY) ## Check format, style, types and the direction of imports.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

browser: ## Install Debian's Chromium for the browser tests, where that can be done.
	@sh .ci/browser

bench: $(READY) ## Measure what MJP costs on this machine.
	$(BIN)/mjp bench plan
	$(BIN)/mjp bench step

clean: ## Remove the environment and all caches.
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "mjp needs Python 3.11 or later; name one with PYTHON=..." >&2; exit 1; }
	@echo "setting up .venv; the first time this downloads a few GB" >&2
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv
	$(BIN)/uv pip install --python $(BIN)/python --compile-bytecode -c constraints.txt -e '.[dev]'
	@touch $(READY)
