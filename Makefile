# Two commands: `make demo` shows it working, `make test` proves it. All else is here to be found by `make help`.

PYTHON ?= python3
# auto: gpu where nvidia-smi finds one, else cpu; later on, what .venv was made for.
ENGINE ?= auto
PORT ?= 3000
PYTEST_ARGS ?=
# Three workers on two cores: half of the tests' time is waiting. The slow ones start in the middle.
PARALLEL := -n 3 --dist loadfile --no-loadscope-reorder

BIN := .venv/bin
BOOTSTRAP = @command -v "$(PYTHON)" >/dev/null || \
	{ echo "bootstrap: no $(PYTHON) here: install Python 3.11 to 3.14, or add PYTHON=/path/to/it" >&2; exit 1; }; \
	"$(PYTHON)" scripts/bootstrap.py --engine $(ENGINE)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-all test-guards audit lint up up-postgres model env env-dev clean clean-data

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "Settings: PYTHON=python3.12  ENGINE=cpu|gpu  PORT=3000  PYTEST_ARGS='-k name'"

demo: env model ## Install, then run the shipped task over the shipped records, both prompt versions, real vLLM
	@$(BIN)/batch-assets run ticket_triage

test: env-dev ## Install, then test what proves the product on one machine: a few minutes
	@$(BIN)/python -m pytest $(PARALLEL) -m "not thorough and not kills" $(PYTEST_ARGS)

test-all: env-dev model ## Test everything: all on PostgreSQL too, browsers, real vLLM, kills, guards by turns
	@$(BIN)/python -m pytest $(PARALLEL) -m "not kills" $(PYTEST_ARGS)
	@$(BIN)/python -m pytest -m kills $(PYTEST_ARGS)
	@$(BIN)/python tests/guards/break_each.py --turn

test-guards: env-dev ## Break each line that docs/guarantees.md rests on, and see its test go red: all of them
	@$(BIN)/python tests/guards/break_each.py

audit: env-dev ## Look for known vulnerabilities in what constraints/ pins; says so where nobody can tell
	@$(BIN)/python scripts/audit.py

lint: env-dev ## Check style, types and the direction of imports
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright
	@$(BIN)/lint-imports

up: env model ## Start Dagster's webserver and daemon on 127.0.0.1, until Ctrl-C
	@exec $(BIN)/batch-assets up --port $(PORT)

up-postgres: ## The same with store and history in PostgreSQL: BATCH_ASSETS_DB_URL=postgresql://user@host/name
	@case "$$BATCH_ASSETS_DB_URL" in \
		postgresql://*|postgresql+*://*) ;; \
		"") echo "error: BATCH_ASSETS_DB_URL is not set: make up-postgres BATCH_ASSETS_DB_URL=postgresql://user@host/name" >&2; exit 2 ;; \
		*) echo "error: BATCH_ASSETS_DB_URL: not a PostgreSQL URL, such as postgresql://user@host/name" >&2; exit 2 ;; \
	esac
	@$(MAKE) --no-print-directory up

model: env ## Prepare the demo's model in the cache
	@$(BIN)/python -m batch_assets.demo_model.smollm2

env: ## Make .venv ready to run
	$(BOOTSTRAP) run

env-dev: ## Make .venv ready to test
	$(BOOTSTRAP) dev

clean: ## Remove .venv and all caches; what was computed (.batch_assets) stays
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist ./*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

clean-data: ## Remove .batch_assets: the store, frames and Dagster's history (asks, unless YES=1)
	@if [ "$(YES)" != 1 ]; then \
		printf 'Remove .batch_assets with all results in it? [y/N] '; \
		read -r answer || answer=n; \
		[ "$$answer" = y ] || { echo "kept"; exit 0; }; \
	fi; \
	rm -rf .batch_assets
