# SPDX-License-Identifier: Apache-2.0
"""A model that there is not is the same mistake in every verb: exit code 2."""

from __future__ import annotations

import shlex
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from tests.commands import verbs
from tritonctl.cli import application

if TYPE_CHECKING:
    from tests.unit.conftest import Sandbox

ASKING = [
    "fetch other",
    "plan other",
    "plan speller other --json",
    "build other",
    "build speller other",
    "build other --dry-run",
    "build other --runner venv",
    "render --models other",
    "graph other --repository models",
    "artefacts show other",
    "artefacts diff speller other",
    "artefacts verify other",
    "up --models speller,other",
    "reload other",
    "generate other 7",
    "chat other",
    "infer other --input a=1",
    "embed other --text a",
    "classify other --text a",
    "rerank other --query a --text b",
    "logs other",
    "smoke --models other",
    "loadtest run --model other",
    "loadtest capacity --model other",
    "deploy compose --models other",
    "new ensemble guarded --model other",
]
# Whose `model` is something else: what init starts from, what the mock is called.
OF_THEIR_OWN = {"rollout compare"}  # no model of a project
NAMES = {"model", "models", "artefact", "artefacts"}


@pytest.fixture
def served(built: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    """A project whose server runs, as far as commands look before they ask for a model."""
    model = built.root / "models" / "speller"
    model.mkdir(parents=True)
    (model / "config.pbtxt").write_text('backend: "python"', encoding="utf-8")
    built.data["loadtests"] = {
        "steady": {
            "model": "speller",
            "requests": [{"prompts": "prompts.jsonl"}],
            "arrivals": {"process": "constant", "rate": 1},
            "slo": {"ttft_p99_ms": 500},
        }
    }
    built.write()
    state: Any = SimpleNamespace(
        models=["speller"],
        grpc_url="127.0.0.1:1",
        endpoint=SimpleNamespace(url="127.0.0.1:1", tls=None, api_key=None),
        metrics_url="http://127.0.0.1:1/metrics",
        client_tls=None,
    )
    client = SimpleNamespace(url=state.grpc_url, models=lambda: {"speller": ""})
    for module in ("runtimes.lifecycle", "loadtest.run.jobs"):
        monkeypatch.setattr(f"tritonctl.{module}.running_server", lambda _: state)
    monkeypatch.setattr("tritonctl.smoke.run.RecordingClient", lambda *_: _Entered(client))
    monkeypatch.chdir(built.root)
    return built


class _Entered:
    """`with` gives the thing itself."""

    def __init__(self, thing: Any) -> None:
        self._thing = thing

    def __enter__(self) -> Any:
        return self._thing

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("line", ASKING)
def test_an_unknown_model(served: Sandbox, line: str) -> None:
    """Its name, and what to type instead; nothing is built, rendered or left behind."""
    before = sorted(served.root.iterdir())
    arguments = shlex.split(line)
    done = CliRunner().invoke(application(arguments), arguments)
    assert done.exit_code == 2, done.stderr
    told = " ".join(done.stderr.split())
    assert "other" in told
    assert "speller" in told
    assert sorted(served.root.iterdir()) == before


def test_every_verb_that_takes_a_model_is_asked() -> None:
    """A new one belongs into the list."""
    taking = {
        verb
        for verb, command in verbs().items()
        if any(parameter.name in NAMES for parameter in command.params)
    }
    asked = {verb for verb in taking if any(f"{line} ".startswith(f"{verb} ") for line in ASKING)}
    assert taking - asked == OF_THEIR_OWN
