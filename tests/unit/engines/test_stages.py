# SPDX-License-Identifier: Apache-2.0
"""Builders of several stages: an artefact each, made once, gone on with after an interruption."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tritonctl.engines.artefacts.manifest import read_manifest
from tritonctl.engines.builds.engine import Artefact, build_engine, built_engine, evaluation_of
from tritonctl.engines.builds.stages import plan_stages
from tritonctl.errors import (
    BuildFailedError,
    ConfigurationError,
    HostError,
    RepositoryError,
    UsageError,
)
from tritonctl.host.progress import Silent

if TYPE_CHECKING:
    from tests.unit.conftest import Sandbox

FIGURES = {
    "prompts": 4,
    "exact_match": 0.75,
    "answer_match": None,
    "diverged": 1,
    "first_divergence": None,
    "mean_divergence_token": 2.0,
    "mean_kl_divergence": 1e-3,
}
STAGES = """
[[stages]]
name = "quantise"
runners = ["current"]
ignores = ["limits.max_batch_size", "options.ignored"]

[[stages]]
name = "compile"
runners = ["container", "current"]
"""


@pytest.fixture
def staged(sandbox: Sandbox) -> Sandbox:
    """The sandbox, its builder in two stages; both run in this interpreter."""
    file = sandbox.root / "builders" / "scripted" / "builder.toml"
    text = file.read_text(encoding="utf-8")
    environment = text[text.index("[environment]") :]
    plain = text.replace(environment, "").replace('runners = ["current", "container"]\n', "")
    file.write_text(f"{plain}{STAGES}", encoding="utf-8")
    sandbox.engine["runner"] = "current"
    sandbox.engine["options"] = {
        "quantise": {"behaviour": "ok", "runs": "quantised.txt"},
        "compile": {"behaviour": "ok", "runs": "compiled.txt"},
    }
    return sandbox


def build(sandbox: Sandbox, *, force: bool = False) -> Artefact:
    return build_engine(sandbox.load(), "speller", Silent(), force=force)


def runs(sandbox: Sandbox) -> tuple[int, int]:
    """How often each stage ran."""

    def lines(name: str) -> int:
        file = sandbox.root / name
        return len(file.read_text(encoding="utf-8").splitlines()) if file.exists() else 0

    return lines("quantised.txt"), lines("compiled.txt")


def request(folder: Path) -> dict[str, Any]:
    text = (folder / "request.json").read_text(encoding="utf-8")
    return json.loads(text)  # type: ignore[no-any-return]


def test_each_stage_has_an_artefact_and_a_manifest(staged: Sandbox) -> None:
    """The second gets the first one's folder; manifests are chained."""
    engine = build(staged)
    quantised, compiled = plan_stages(staged.load(), "speller")
    assert engine.folder == compiled.folder
    assert quantised.folder.name.startswith("quantise-")
    assert compiled.folder.name.startswith("compile-")
    first, second = read_manifest(quantised.folder), read_manifest(compiled.folder)
    assert (first.stage, first.source) == ("quantise", None)
    assert (second.stage, second.source) == ("compile", first.fingerprint)
    assert request(quantised.folder)["source"] is None
    assert request(compiled.folder)["source"] == str(quantised.folder)
    assert request(compiled.folder)["stage"] == "compile"
    assert request(compiled.folder)["options"] == staged.engine["options"]["compile"]


def test_second_build_of_stages_does_nothing(staged: Sandbox) -> None:
    """Neither stage is started."""
    assert build(staged).is_new
    assert not build(staged).is_new
    assert runs(staged) == (1, 1)


def test_what_a_stage_ignores_does_not_make_it_anew(staged: Sandbox) -> None:
    """A larger batch compiles again, and does not quantise again."""
    before = build(staged).folder
    staged.engine["max_batch_size"] = 8
    staged.engine["options"]["quantise"]["ignored"] = 1
    assert build(staged).folder != before
    assert runs(staged) == (1, 2)
    staged.engine["precision"] = "fp32"
    build(staged)
    assert runs(staged) == (2, 3)


def test_a_failed_build_goes_on_behind_the_last_finished_stage(staged: Sandbox) -> None:
    """What was quantised for an hour is not quantised twice."""
    staged.engine["options"]["compile"]["behaviour"] = "crash"
    with pytest.raises(BuildFailedError, match="died while building speller"):
        build(staged)
    with pytest.raises(RepositoryError):
        built_engine(staged.load(), "speller")
    log = staged.root / ".tritonctl" / "failed-builds" / "speller.compile.log"
    assert "a bug of the builder" in log.read_text(encoding="utf-8")
    staged.engine["options"]["compile"]["behaviour"] = "ok"
    build(staged)
    assert runs(staged) == (1, 2)


def test_a_stage_that_cannot_run_where_it_was_asked_to_says_so(staged: Sandbox) -> None:
    """It runs where it can; the other one has no word to say."""

    class Heard(Silent):
        notes: list[str] = []  # noqa: RUF012 - of this test

        def note(self, text: str) -> None:
            self.notes.append(text)

    staged.engine["runner"] = "container"
    with pytest.raises(ConfigurationError, match="needs an image"):
        build_engine(staged.load(), "speller", Heard())
    assert Heard.notes == [
        "speller: the stage quantise does not support --runner container and uses current"
    ]


def test_force_makes_every_stage_again(staged: Sandbox) -> None:
    """--force means the whole engine."""
    build(staged)
    assert build(staged, force=True).is_new
    assert runs(staged) == (2, 2)


@pytest.mark.parametrize("options", [{"compyle": {}}, {"behaviour": "ok"}])
def test_options_belong_to_a_stage(staged: Sandbox, options: dict[str, Any]) -> None:
    """Options that no stage would see are not ignored."""
    staged.engine["options"] = options
    with pytest.raises(ConfigurationError, match="takes options by stage") as caught:
        build(staged)
    assert caught.value.remedy == "move options under one of: compile, quantise"


def test_a_stage_runs_where_it_can(staged: Sandbox) -> None:
    """The runner asked for where the stage has it, otherwise the stage's first."""
    staged.engine["runner"] = "container"
    quantised, compiled = plan_stages(staged.load(), "speller")
    assert (quantised.runner, compiled.runner) == ("current", "container")


@pytest.mark.parametrize(
    ("engine", "problem"),
    [
        ("no-such-engine", "no container engine: no-such-engine not found"),
        ("false", "false does not answer"),
    ],
)
def test_a_container_is_asked_for_before_the_first_stage(
    staged: Sandbox, monkeypatch: pytest.MonkeyPatch, engine: str, problem: str
) -> None:
    """What the second stage will not find is said before the first has worked; until it, not."""
    monkeypatch.setenv("TRITONCTL_CONTAINER_ENGINE", engine)
    staged.engine.update(runner="container", target={"image": "registry/image:1"})
    with pytest.raises(HostError) as caught:
        build(staged)
    assert caught.value.problem == f"speller (compile): {problem}"
    assert runs(staged) == (0, 0)
    build_engine(staged.load(), "speller", Silent(), until="quantise")
    assert runs(staged) == (1, 0)


def test_an_image_is_named_before_the_first_stage(staged: Sandbox) -> None:
    """The same where nothing says which container."""
    staged.engine["runner"] = "container"
    with pytest.raises(ConfigurationError, match="needs an image"):
        build(staged)
    assert runs(staged) == (0, 0)


def test_a_builder_that_runs_nowhere_is_malformed(staged: Sandbox) -> None:
    """Neither runners nor stages."""
    file = staged.root / "builders" / "scripted" / "builder.toml"
    file.write_text(file.read_text(encoding="utf-8").replace(STAGES, ""), encoding="utf-8")
    with pytest.raises(ConfigurationError, match="neither `runners` nor `stages`"):
        build(staged)


def test_until_stops_after_a_stage(staged: Sandbox) -> None:
    """Quantised here, compiled elsewhere: the rest is built when it is asked for."""
    quantised = build_engine(staged.load(), "speller", Silent(), until="quantise")
    assert quantised.folder.name.startswith("quantise-")
    assert runs(staged) == (1, 0)
    assert not build_engine(staged.load(), "speller", Silent(), until="quantise").is_new
    assert build(staged).is_new
    assert runs(staged) == (1, 1)


def test_until_a_stage_that_is_none(staged: Sandbox) -> None:
    """The stages are named."""
    with pytest.raises(UsageError, match="has no stage `package`") as caught:
        build_engine(staged.load(), "speller", Silent(), until="package")
    assert caught.value.remedy == "its stages: quantise, compile"


def test_the_figures_of_an_earlier_stage_are_the_engine_s(staged: Sandbox) -> None:
    """Evaluated before it was compiled; once that artefact is gone, nothing is invented."""
    engine = build(staged)
    assert evaluation_of(engine) is None
    source = plan_stages(staged.load(), "speller")[0].folder
    manifest = json.loads((source / "manifest.json").read_text(encoding="utf-8"))
    manifest["result"]["evaluation"] = FIGURES
    (source / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    figures = evaluation_of(engine)
    assert figures is not None
    assert (figures.exact_match, figures.mean_kl_divergence) == (0.75, 1e-3)
    shutil.rmtree(source)
    assert evaluation_of(engine) is None
