# SPDX-License-Identifier: Apache-2.0
"""Why a server did not start: Triton's words, what `check` finds in the file, what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tritonctl.errors import ServerError, UsageError
from tritonctl.host.progress import Silent
from tritonctl.project.schema import Project
from tritonctl.repository.choice import handwritten_by_name
from tritonctl.repository.publish import RenderedRepository, render
from tritonctl.runtimes.embedded.lifecycle import require_servable
from tritonctl.runtimes.startup_error import startup_error

CONFIG = """name: "{name}"
backend: "{backend}"
max_batch_size: 8
input [ {{ name: "A" data_type: TYPE_STRING dims: [ 1 ] }} ]
output [ {{ name: "B" data_type: TYPE_STRING dims: [ {size} ] }} ]
"""
MODEL = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""
LOADING = 'I1121 03:26:51.114872 1 model_lifecycle.cc:472] "loading: {name}:1"\n'
FAILED = (
    "E1121 03:26:52.393215 1 model_lifecycle.cc:642] "
    "\"failed to load '{name}' version 1: {reason}\"\n"
)
EXITED = "tritonserver exited during startup: exit code 1"


def project_of(root: Path, **sizes: int) -> tuple[Project, RenderedRepository]:
    """A project of handwritten models only, with the size of each one's output."""
    data: dict[str, Any] = {"schema": "tritonctl/v1", "model_repository": "models"}
    for name, size in sizes.items():
        folder = root / "models" / name / "1"
        folder.mkdir(parents=True)
        (folder / "model.py").write_text(MODEL)
        config = CONFIG.format(name=name, backend="python", size=size)
        (folder.parent / "config.pbtxt").write_text(config)
    project = Project.at(root, data)
    return project, render(project, Silent())


def error_of(
    root: Path, log_text: str, problem: str = EXITED, late: tuple[str, ...] = (), **sizes: int
) -> ServerError:
    """The error for a server with such models and such a log."""
    project, rendered = project_of(root, **sizes)
    log = root / "triton.log"
    log.write_text(log_text)
    return startup_error(project, rendered, log, problem, late)


@pytest.fixture(autouse=True)
def _in_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_file_and_line(tmp_path: Path) -> None:
    """Of the model that failed, not of another with the same mistake."""
    reason = "Invalid argument: model output 'B' dimension must be integer >= 1"
    error = error_of(tmp_path, FAILED.format(name="mine", reason=reason), mine=0, other=0)
    assert error.problem == (
        f"{EXITED}\nmodel mine: {reason}\n"
        "check: models/mine/config.pbtxt:5:53 TC163 error: output B has 0 in dims"
    )
    assert error.remedy.startswith("models/mine/config.pbtxt:5:53: write 1 or more, or -1")
    assert "`tritonctl up --models other`" in error.remedy


def test_nothing_found(tmp_path: Path) -> None:
    """Triton's words and its log, as far as they go."""
    log = FAILED.format(name="mine", reason="Internal: no idea")
    error = error_of(tmp_path, log, mine=1)
    assert error.problem == f"{EXITED}\nmodel mine: Internal: no idea"
    assert error.remedy == f"the full log is {tmp_path / 'triton.log'}"


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        (
            "Internal: ModuleNotFoundError: No module named 'roman.numerals'",
            (
                "write the package that provides `roman` into models/mine/requirements.txt: "
                "`tritonctl up` installs it; or put the module next to model.py"
            ),
        ),
        (
            "Internal: Failed to get the canonical path for env.tar.gz.",
            (
                "env.tar.gz does not exist: remove EXECUTION_ENV_PATH and write the packages into "
                "models/mine/requirements.txt: `tritonctl up` installs them, nothing needs packing"
            ),
        ),
        (
            (
                "Invalid argument: unable to find backend library for backend 'fil', try "
                "specifying runtime on the model configuration."
            ),
            "this server has no backend fil: serve mine with an image that has it",
        ),
        (
            "Internal: Stub process 'mine_0_0' is not healthy.",
            "the process of mine crashed while it loaded",
        ),
    ],
)
def test_known_causes(tmp_path: Path, reason: str, remedy: str) -> None:
    """What Triton's words ask for."""
    error = error_of(tmp_path, FAILED.format(name="mine", reason=reason), mine=1)
    assert error.remedy.startswith(remedy)
    assert error.remedy.endswith(f"the full log is {tmp_path / 'triton.log'}")


@pytest.mark.parametrize(
    "problem",
    [
        "tritonserver exited during startup: signal 11 (SIGSEGV)",
        (
            "tritonserver exited during startup: a stub process of a Python model was killed; "
            "tritonserver cannot restart it"
        ),
    ],
)
def test_a_crash_names_what_was_loading(tmp_path: Path, problem: str) -> None:
    """From the log, with `check`'s findings for it and the command for the others."""
    loaded = "I1121 03:26:52.0 1 model_lifecycle.cc:839] \"successfully loaded 'other'\"\n"
    log = LOADING.format(name="mine") + LOADING.format(name="other") + loaded
    error = error_of(tmp_path, log, problem, mine=0, other=1)
    assert error.problem.startswith(
        f"{problem}\nit crashed while loading: mine\ncheck: models/mine/"
    )
    assert "`tritonctl up --models other`" in error.remedy
    assert "successfully loaded 'other'" in (error.details or "")


def test_an_exit_is_no_crash(tmp_path: Path) -> None:
    """Models that were loading when another one failed are not to blame."""
    error = error_of(tmp_path, LOADING.format(name="mine"), mine=0)
    assert error.problem == EXITED


def test_what_is_late(tmp_path: Path) -> None:
    """It is named once."""
    error = error_of(tmp_path, LOADING.format(name="mine"), "not in time", ("mine",), mine=1)
    assert error.problem == "not in time\nstill loading: mine"


@pytest.mark.parametrize(
    ("config", "files", "backend"),
    [
        ('backend: "onnxruntime"', ("model.onnx",), "onnxruntime"),
        ('platform: "tensorrt_plan"', ("model.plan",), "tensorrt"),
        ("", ("model.onnx",), "onnxruntime"),
        ('backend: "mine"', ("libtriton_mine.so",), None),
        ('backend: "python"', ("model.py",), "python"),
        ("ensemble_scheduling { step [ { model_name: 'a' model_version: -1 } ] }", (), "ensemble"),
    ],
)
def test_the_embedded_server_has_one_backend(
    tmp_path: Path, config: str, files: tuple[str, ...], backend: str | None
) -> None:
    """Refused before Triton starts, with the ways out; its own library and an ensemble are not."""
    folder = tmp_path / "models" / "m" / "1"
    folder.mkdir(parents=True)
    (folder.parent / "config.pbtxt").write_text(f'name: "m"\n{config}\n')
    for file in files:
        (folder / file).touch()
    project, rendered = project_of(tmp_path)
    (model,) = rendered.plan.handwritten
    assert model.backend == backend
    if backend in (None, "ensemble", "python"):
        require_servable(project, rendered)
        return
    with pytest.raises(ServerError, match=f"m needs the backend {backend}, and the emb") as caught:
        require_servable(project, rendered)
    assert caught.value.problem.startswith("models/m/config.pbtxt: ")
    assert "--mode docker" in caught.value.remedy


def test_a_folder_without_a_configuration(tmp_path: Path) -> None:
    """Named by `--models`: it exists, and lacks one file."""
    project, _ = project_of(tmp_path, mine=1)
    (tmp_path / "models" / "bare" / "1").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"models/bare has no config\.pbtxt, so it is not a model"):
        handwritten_by_name(project, ["bare"])
    with pytest.raises(UsageError, match="neither the project nor its repository"):
        handwritten_by_name(project, ["nothing"])
