# Two commands are all a newcomer needs: `make demo` and `make test`. Both do their own set-up.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-demo
RUN_STAMP := $(VENV)/.installed-run

.DEFAULT_GOAL := help
.PHONY: help setup demo run test check lint types kernel collect unit soak bench docs package clean lock

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

setup: $(STAMP)  ## build .venv with the orbitmq command and all development tools

KERNEL := kernel/Cargo.toml kernel/pyproject.toml $(wildcard kernel/src/*.rs)

$(STAMP): requirements/dev.txt pyproject.toml scripts/setup.sh scripts/build_kernel.sh $(KERNEL)
	@PYTHON="$(PYTHON)" VENV="$(VENV)" bash scripts/setup.sh
	@touch $@ $(DEMO_STAMP) $(RUN_STAMP)

$(DEMO_STAMP): requirements/server.txt requirements/spark.txt pyproject.toml scripts/setup.sh
	@PYTHON="$(PYTHON)" VENV="$(VENV)" bash scripts/setup.sh demo
	@touch $@

$(RUN_STAMP): requirements/run.txt pyproject.toml scripts/setup.sh
	@PYTHON="$(PYTHON)" VENV="$(VENV)" bash scripts/setup.sh run
	@touch $@

demo: $(DEMO_STAMP)  ## an end-to-end run that ends by itself; installs only what it uses
	@$(BIN)/orbitmq demo

run: $(RUN_STAMP)  ## name server, broker, gRPC and web console in one process on loopback, data in ./data
	@$(BIN)/orbitmq up --data ./data

lint: setup  ## ruff: rules and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: setup  ## mypy, strict
	@$(BIN)/mypy src tests benchmarks integrations scripts

collect: setup  ## import every test and build the clients of tests once, so that `make unit` finds them ready
	@$(BIN)/pytest --collect-only --quiet --quiet --quiet
	@$(BIN)/python -m tests.apache.prepare

unit: setup  ## every test, in four processes
	@$(BIN)/python -m tests.run_all

soak: setup  ## the long and repetitive tests that `make test` leaves out
	@$(BIN)/pytest -m soak --timeout 3600

kernel: setup  ## cargo test and clippy, where cargo is present
	@if command -v cargo >/dev/null; then cd kernel && cargo test --quiet --no-default-features; \
		else echo "no cargo: the crate kernel/ is not tested"; fi
	@if cargo clippy --version >/dev/null 2>&1; then cd kernel && cargo clippy --quiet --all-targets -- -D warnings; \
		else echo "no clippy: the crate kernel/ is not linted"; fi

check: setup  ## lint, types, the unit tests and a few simulated clusters, in under three minutes
	@$(MAKE) --no-print-directory -j2 lint types
	@$(BIN)/python -m tests.run_all -n 2 tests/tidy tests/unit
	@$(BIN)/python -m tests.sim --count 4

test: setup  ## lint, types and every test
	@$(MAKE) --no-print-directory -j2 lint types kernel collect
	@$(MAKE) --no-print-directory unit

bench: setup  ## the benchmarks, beside Apache RocketMQ where Java is present
	@$(BIN)/orbitmq bench all

docs: setup  ## the documents as a site
	@$(BIN)/python scripts/build_docs.py

package: setup  ## wheels for x86-64 and aarch64 and the sdist in dist/, checked, with a list of packages and licences
	@$(BIN)/python scripts/build_package.py
	@$(BIN)/python scripts/build_wheels.py

COMPILE := UV_NATIVE_TLS=1 build/lock/bin/uv pip compile --quiet --universal --python-version 3.11 \
	--strip-extras --generate-hashes --custom-compile-command "make lock"
AS_DEV := --constraint requirements/dev.txt pyproject.toml

lock:  ## renew requirements/*.txt (all hashes, no index address)
	@$(PYTHON) -m venv --clear build/lock
	@build/lock/bin/pip install --quiet --disable-pip-version-check uv
	@$(COMPILE) --upgrade --extra dev --output-file requirements/dev.txt pyproject.toml
	@$(COMPILE) --extra build --extra server --output-file requirements/server.txt $(AS_DEV)
	@$(COMPILE) --extra build --extra server --extra console --extra proxy --output-file requirements/run.txt $(AS_DEV)
	@$(COMPILE) --extra build --extra server --extra spark --output-file requirements/spark.txt $(AS_DEV)
	@$(COMPILE) --output-file requirements/package.txt requirements/package.in

clean:  ## remove what the targets made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build dist
