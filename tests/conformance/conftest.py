# SPDX-License-Identifier: Apache-2.0
"""Which servers the cases are run against: this repository's engines, or the one that is named."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.wire import Target
from tests.conftest import EXAMPLE
from tests.server.replay import replay_project
from tritonctl.progress import Silent
from tritonctl.triton.repository import render
from tritonctl.triton.server import start, stop

# What an engine may or may not have; `needs` in the cases. The shipped speller has all of it.
SPELLER = ("number-speller", "sampling", "end_id", "log_probs", "chat", "no bad_words")
REPLAY = ("no chat",)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of a run against somebody else's server."""
    group = parser.getgroup("conformance")
    group.addoption("--endpoint", help="HOST:PORT of a Triton's gRPC endpoint")
    group.addoption("--model", help="name of the text-generation ensemble there")
    group.addoption("--has", action="append", help="what its engine has of the cases' `needs`")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every case against every server."""
    if "target" in metafunc.fixturenames:
        # Loaded late, in a run of all tests, this file's options do not exist.
        given = metafunc.config.getoption("--endpoint", default=None)
        if given and not metafunc.config.getoption("--model"):
            raise pytest.UsageError("--endpoint needs --model NAME, the ensemble's name there")
        names = ["endpoint"] if given else ["speller", "replay"]
        metafunc.parametrize("target", names, indirect=True, scope="session")


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest) -> Target:
    """The model under test."""
    found: Target = request.getfixturevalue(f"{request.param}_target")
    return found


@pytest.fixture(scope="session")
def endpoint_target(request: pytest.FixtureRequest) -> Target:
    """What the command line names."""
    option = request.config.getoption
    return Target(option("--endpoint"), option("--model"), option("--has"))


@pytest.fixture(scope="session")
def speller_target(request: pytest.FixtureRequest) -> Target:
    """The shipped checkpoint through the OpenVINO engine."""
    return Target(request.getfixturevalue("speller_server").grpc_url, "exact", SPELLER)


@pytest.fixture(scope="session")
def replay_target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """An engine without a model: it says what the prompt says."""
    folder = tmp_path_factory.mktemp("conformance")
    project = replay_project(folder, {"replay": (EXAMPLE / "checkpoint" / "tokenizer.json", [])})
    state, _ = start(project, render(project, Silent()), Silent())
    yield Target(state.grpc_url, "replay", REPLAY)
    stop(project, Silent())
