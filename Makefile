# Headrace. `make` alone prints what there is.
BIN := .venv/bin
STAMP := .venv/.installed
LOCKS := requirements-build.lock requirements.lock
NAME ?=
ARGS ?=

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test chaos check format bench lock clean java

help: ## print this list
	@echo "Headrace: exact streaming metrics on Spark. Needs Python 3.11+ and Java 17+; the rest is installed into .venv."
	@echo
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  PYTHON=python3.12   the Python to make .venv with        ARGS='-k name -x'   more arguments for pytest"

demo: java $(STAMP) ## payments, metrics on Spark, and the fraud that hopping windows miss
	@$(BIN)/headrace demo $(ARGS)

test: java check ## all checks and all tests
	@scripts/tests.sh $(BIN)/python $(ARGS)

chaos: java $(STAMP) ## make chaos [SEED=1] [RUNS=200]: random streams and flows, crashes at every point; takes about two hours
	@SEED="$(SEED)" RUNS="$(RUNS)" $(BIN)/python -m pytest -m chaos tests/chaos tests/kafka tests/spark $(ARGS)

check: $(STAMP) ## ruff, mypy --strict and the import arrows
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(STAMP) ## let ruff mend what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: java $(STAMP) ## make bench NAME=measure_batch [QUICK=1]: figures into bench/results
	@test -n "$(NAME)" && test -f "bench/$(NAME).py" || { \
	  echo "make bench NAME=...: one of"; \
	  for file in $$(grep -l __main__ bench/*.py); do echo "  $$(basename $$file .py)"; done; exit 2; }
	@QUICK="$(QUICK)" $(BIN)/python bench/$(NAME).py

lock: $(STAMP) ## resolve the dependencies anew (LOCK_ARGS=--upgrade for the newest)
	@$(BIN)/uv pip compile pyproject.toml --all-extras $(LOCK_OPTIONS) -o requirements.lock
	@$(BIN)/uv pip compile --group build $(LOCK_OPTIONS) -o requirements-build.lock
	@echo "locked: $$(grep -c '^[a-z].*==' requirements.lock) packages"

clean: ## remove .venv, caches and the demo's output
	rm -rf .venv .venv-flink demo-output .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

LOCK_OPTIONS := --universal --python-version 3.11 --generate-hashes --no-annotate --quiet \
  --custom-compile-command "make lock" $(LOCK_ARGS)

java:
	@scripts/preflight.sh java

$(STAMP): $(LOCKS) pyproject.toml
	@python=$$(PYTHON="$(PYTHON)" scripts/preflight.sh python) && scripts/install.sh "$$python"
	@touch $@
