# SPDX-License-Identifier: Apache-2.0
# One line per job; CI calls the same targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Their modules share names (build.py): each is checked by itself.
BUILDERS := $(patsubst %/builder.toml,%,$(wildcard builders/*/builder.toml))

.PHONY: help setup quickstart test check unit server containers bench-streaming soak format clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

setup: $(VENV)/.installed ## the development environment in .venv

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable . --group dev
	touch $@

quickstart: setup ## checkpoint to streamed text: build, render, serve, ask
	$(BIN)/tritonctl quickstart

test: check unit server containers ## everything CI runs

check: setup ## style, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	for builder in $(BUILDERS); do MYPYPATH=$$builder $(BIN)/mypy $$builder || exit 1; done

unit: setup ## tests that need no engine and no server
	$(BIN)/pytest -m "not engine and not server and not docker"

server: setup ## tests with real engines and a real Triton
	$(BIN)/pytest -m "engine or server"

containers: setup ## tests in real containers; loudly skipped without a Docker Engine
	$(BIN)/pytest -m docker -rs

bench-streaming: setup ## streamed text against NVIDIA's sample and a single model (ratios)
	$(BIN)/python benchmarks/streaming/run.py
	$(BIN)/python benchmarks/streaming/real_engine.py

soak: setup ## 200,000 streams, a third of them cancelled: leaks, wrong texts
	$(BIN)/python benchmarks/soak/run.py

format: setup ## rewrite to the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove what tools left behind, keep .venv
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
