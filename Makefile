# SPDX-License-Identifier: Apache-2.0
# One line per job; CI calls the same targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Two at a time, files kept whole for their fixtures: builders spend their time on importing torch.
PARALLEL := -n 2 --dist loadfile
# Real servers against the clock: one that fails is tried once more, and the summary names it.
AGAIN := --reruns 1 -rsR
# Their modules share names (build.py): each is checked by itself.
BUILDERS := $(patsubst %/builder.toml,%,$(wildcard builders/*/builder.toml))

.PHONY: help setup quickstart test check unit engines server containers test-docker rules check-differential bench-check bench-streaming bench-loadtest bench-gateway bench-docker soak format clean

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

test: check unit engines server containers ## everything CI runs

check: setup ## style, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	for builder in $(BUILDERS); do MYPYPATH=$$builder $(BIN)/mypy $$builder || exit 1; done

unit: setup ## tests that need no engine and no server
	$(BIN)/pytest $(PARALLEL) -m "not engine and not server and not docker and not browser"

engines: setup ## tests that build real engines
	$(BIN)/pytest $(PARALLEL) -m "engine and not server and not docker"

server: setup ## tests with a real Triton and a real browser; those that measure, one at a time
	$(BIN)/pytest $(PARALLEL) -m "(server or browser) and not alone and not docker" $(AGAIN)
	$(BIN)/pytest -m "alone and not docker" $(AGAIN)

containers: setup ## tests in real containers; loudly skipped without a Docker Engine
	tests/docker/install.sh
	$(BIN)/pytest -m docker $(AGAIN)

test-docker: setup ## of these, docker compose alone: image, up, streams, kill, drain, down
	tests/docker/install.sh
	$(BIN)/pytest tests/docker -m docker -rs --durations=10

rules: setup ## docs/rules/ from the rules themselves
	$(BIN)/python -m tritonctl.checks.report.pages docs/rules

check-differential: setup ## what `tritonctl check` says of 1,000 random repositories, against a real Triton
	$(BIN)/python benchmarks/check/differential.py

bench-check: setup ## how long `tritonctl check` takes: 1,000 models, one model
	$(BIN)/python benchmarks/check/run.py

bench-streaming: setup ## streamed text against NVIDIA's sample and a single model (ratios)
	$(BIN)/python benchmarks/streaming/run.py
	$(BIN)/python benchmarks/streaming/real_engine.py

bench-loadtest: setup ## the load generator and the tuner against truth, perf_analyzer, a full sweep
	$(BIN)/python benchmarks/loadtest/run.py
	$(BIN)/python benchmarks/loadtest/tuner.py

bench-gateway: setup ## one server directly and through the gateway (ratios; where the delay comes from)
	$(BIN)/python benchmarks/gateway/delay.py
	$(BIN)/python benchmarks/gateway/run.py

bench-docker: setup ## in containers: from the call to the first token; directly and through the gateway
	tests/docker/install.sh
	$(BIN)/python benchmarks/docker/first_token.py
	$(BIN)/python benchmarks/gateway/delay.py --containers --streams 1 8 --tokens 0 128
	$(BIN)/python benchmarks/gateway/run.py --containers

soak: setup ## 200,000 streams, a third of them cancelled: leaks, wrong texts
	$(BIN)/python benchmarks/soak/run.py

format: setup ## rewrite to the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove what tools left behind, keep .venv
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
