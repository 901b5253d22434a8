# SPDX-License-Identifier: Apache-2.0
"""Other people's clients, unmodified, against the frontend in front of a real Triton.

Each runs in an environment of its own and tries its features one by one; the table of
docs/reference/clients.md is what came of them.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.clients.environments import client_python
from tests.clients.table import cell, column, write_column

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

PROGRAMS = Path(__file__).parent / "programs"


@dataclass(frozen=True)
class Client:
    """The environment that has it, its program, the package whose version is shown."""

    environment: str
    program: str
    package: str


CLIENTS: Mapping[str, Client] = {
    "openai 3": Client("openai", "openai_sdk", "openai"),
    "openai 2": Client("frameworks", "openai_sdk", "openai"),
    "Agents SDK": Client("agents", "openai_agents", "openai-agents"),
    "LangChain": Client("frameworks", "langchain_openai_classes", "langchain-openai"),
    "LlamaIndex": Client("frameworks", "llama_index_classes", "llama-index-llms-openai-like"),
    "LiteLLM": Client("frameworks", "litellm_library", "litellm"),
    "instructor": Client("frameworks", "instructor_library", "instructor"),
    "outlines": Client("outlines", "outlines_library", "outlines"),
    "Open WebUI's calls": Client("frameworks", "open_webui_calls", ""),
}


@dataclass(frozen=True)
class Tried:
    """A client's version, and its features with what went wrong, "" for nothing."""

    version: str
    problems: Mapping[str, str]


@cache
def tried(name: str, facts_file: Path) -> Tried:
    """Run a client's program once."""
    client = CLIENTS[name]
    python = client_python(client.environment)
    done = subprocess.run(
        [python, PROGRAMS / f"{client.program}.py", facts_file],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"feature"')]
    return Tried(_version(python, client.package), {i["feature"]: i["problem"] for i in lines})


def _version(python: Path, package: str) -> str:
    if not package:
        return ""
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return subprocess.run(
        [python, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture(scope="module")
def facts_file(served: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the address and the models that the client programs use."""
    file = tmp_path_factory.mktemp("facts") / "facts.json"
    file.write_text(json.dumps(served), encoding="utf-8")
    return file


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_gets_what_the_table_says(
    name: str, facts_file: Path, request: pytest.FixtureRequest
) -> None:
    """The same texts, vectors and counts as of the ensembles; refusals as the client's own."""
    one = tried(name, facts_file)
    made = {feature: cell(problem) for feature, problem in one.problems.items()}
    if request.config.getoption("--update-clients"):
        write_column(f"{name} {one.version}".strip(), made)
    problems = "\n".join(f"{key}: {value}" for key, value in one.problems.items() if value)
    assert made == column(name), problems
