# Every command of the project. `make` alone lists them.

SEEDS ?= 10000
WORLDS ?= kernel pipes hub client inbox
WORKERS ?= 2
PYTEST_ARGS ?=
SIM_ARGS ?=
BENCH_ARGS ?=

# Set PYTHON to choose the Python that .venv is made with.
export PYTHON

BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint format sim bench docs soak chaos lock clean

help: ## List the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Make .venv ready for work on Semel
	@scripts/setup main spark test lint

demo: ## Show what Semel does (no root, no server)
	@scripts/setup main spark demo
	@$(BIN)/semel demo

test: lint ## Lint, then run every test (WORKERS=2 PYTEST_ARGS=...)
	@$(BIN)/python scripts/system-needs check
	@status=0; scripts/test $(WORKERS) $(PYTEST_ARGS) || status=$$?; \
		$(BIN)/python scripts/system-needs report; exit $$status

lint: setup ## Check format, style, the purity rule, import cycles and types
	@$(BIN)/ruff format --check --quiet . || { echo "Run 'make format' to fix the format."; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/python scripts/import-cycles
	@$(BIN)/mypy

format: setup ## Format the code and fix what can be fixed
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

sim: ## Run the simulator (SEEDS=10000 WORLDS=hub SIM_ARGS=...)
	@scripts/setup main
	@for world in $(WORLDS); do $(BIN)/semel sim --world $$world --seeds $(SEEDS) $(SIM_ARGS) || exit; done

bench: ## Measure stores, pipes, pub/sub and Spark (BENCH_ARGS=... for the stores)
	@scripts/setup main spark test bench
	@$(BIN)/semel bench store $(BENCH_ARGS)
	@$(BIN)/semel bench store --engine postgres $(BENCH_ARGS)
	@$(BIN)/semel bench turns
	@$(BIN)/semel bench pipes
	@$(BIN)/semel bench pubsub
	@$(BIN)/semel bench spark

docs: ## Build the documentation into site/
	@scripts/setup docs
	@$(BIN)/mkdocs build --quiet --clean
	@echo "Open site/index.html"

soak: setup ## Run one part for a long time and record it (PART=name)
	@test -n "$(PART)" || { echo "Say which part: make soak PART=name"; exit 2; }
	@$(BIN)/python -m tests.campaigns.soak $(PART)

chaos: setup ## Kill and restart real processes and check that nothing is lost
	@$(BIN)/python -m tests.campaigns.chaos

lock: ## Write requirements/ from pyproject.toml (UPGRADE=1 for newer versions)
	@scripts/setup uv
	@scripts/lock $(if $(UPGRADE),--upgrade)

clean: ## Remove everything that can be made again
	@rm -rf .venv site build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
