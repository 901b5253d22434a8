# SPDX-License-Identifier: Apache-2.0
"""Environments made by the real pip and the real uv, from indexes on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.package_index import Index, indexing
from tritonctl.errors import ConfigurationError, HostError
from tritonctl.host.environments import Recipe, ensure, environment_python
from tritonctl.host.installer import installer, pip_settings
from tritonctl.host.progress import Silent, Step
from tritonctl.host.torch_index import answers, of_torch

TORCH = Recipe("test", (("torch==2.13.0",), ("--no-deps", "other==1.0")), probe="import torch")


class Told:
    """Progress that keeps the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        with Silent().step(title) as step:
            yield step


@pytest.fixture(params=["pip", "uv"])
def tool(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Both that fill environments: uv as .venv has it, with a cache of its own; no settings."""
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TRITONCTL_INSTALLER", request.param)
    return str(request.param)


@pytest.fixture
def indexes(tool: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Index, Index]]:
    """The configured index, whose PyTorch brings CUDA, and PyTorch's own with wheels for CPUs."""
    with ExitStack() as stack:
        public, own = stack.enter_context(indexing()), stack.enter_context(indexing())
        public.put("torch", "2.13.0", needs=["cudalibraries==1.0", "other"])
        public.put("cudalibraries", "1.0", filling=3 << 20)
        public.put("other", "1.0")
        public.put("other", "2.0")
        own.put("torch", "2.13.0+cpu", needs=["other"])
        own.put("torch", "2.14.0+cpu")
        monkeypatch.setenv("PIP_INDEX_URL", public.url)
        monkeypatch.setenv("TRITONCTL_TORCH_INDEX", own.url)
        yield public, own


def versions(folder: Path) -> dict[str, str]:
    """What is installed, apart from pip itself."""
    code = (
        "import importlib.metadata as m, json;"
        "print(json.dumps({d.name: d.version for d in m.distributions()}))"
    )
    done = subprocess.run(
        [environment_python(folder), "-c", code], capture_output=True, text=True, check=True
    )
    found: dict[str, str] = json.loads(done.stdout)
    return {k: v for k, v in found.items() if k not in {"pip", "setuptools"}}


def test_torch_for_cpus(tool: str, indexes: tuple[Index, Index]) -> None:
    """The version that is asked for, of PyTorch's index; the rest of the configured one."""
    public, own = indexes
    told = Told()
    folder = ensure(TORCH, told)
    assert versions(folder) == {"torch": "2.13.0+cpu", "other": "1.0"}
    assert f"PyTorch for CPUs came from {own.url}" in told.notes
    assert not any("/other/" in path for path in own.asked)
    assert not any("cudalibraries" in path for path in public.asked)
    marks = (folder / "pyvenv.cfg").read_text(encoding="utf-8")
    assert ("uv = " in marks) is (tool == "uv")


@pytest.mark.parametrize("why", ["down", "without it"])
def test_torch_of_the_configured_index(tool: str, indexes: tuple[Index, Index], why: str) -> None:
    """PyTorch's index is down, or lacks the version: told in one line, and it goes on."""
    _, own = indexes
    own.down = why == "down"
    own.wheels.pop("torch-2.13.0+cpu-py3-none-any.whl")
    told = Told()
    folder = ensure(TORCH, told)
    assert versions(folder) == {"torch": "2.13.0", "other": "1.0", "cudalibraries": "1.0"}
    [note] = [note for note in told.notes if "configured index" in note]
    assert ("does not answer" in note) is own.down


def test_what_needs_a_gpu_gets_cuda(tool: str, indexes: tuple[Index, Index]) -> None:
    """PyTorch's index of CPU wheels is not asked, and the environment is another."""
    _, own = indexes
    on_gpus = Recipe(TORCH.name, TORCH.installs, probe=TORCH.probe, gpu=True)
    assert on_gpus.fingerprint() != TORCH.fingerprint()
    assert versions(ensure(on_gpus, Silent()))["torch"] == "2.13.0"
    assert own.asked == []


def test_the_fingerprint_knows_no_tool(tool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that pip made is found where uv is installed by now."""
    before = TORCH.fingerprint()
    monkeypatch.setenv("TRITONCTL_INSTALLER", "pip" if tool == "uv" else "uv")
    assert TORCH.fingerprint() == before


def test_pip_s_settings_are_uv_s(
    tool: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of its files and variables, the variables first; uv's own are left alone."""
    file = tmp_path / "pip.conf"
    file.write_text(
        "[global]\nindex-url = https://a.example/simple\ntimeout = 7\n"
        "extra-index-url =\n    https://b.example/simple\n    https://c.example/simple\n"
        "[install]\nfind-links = /wheels\nno-index = true\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(file))
    monkeypatch.setenv("PIP_INDEX_URL", "https://user:secret@d.example/simple")
    python = Path(sys.executable)
    assert pip_settings(python)["index-url"] == "https://user:secret@d.example/simple"
    found = installer(python)
    if tool == "pip":
        assert found.uv is None
        return
    assert found.settings["UV_DEFAULT_INDEX"] == "https://user:secret@d.example/simple"
    assert found.settings["UV_INDEX"] == "https://b.example/simple https://c.example/simple"
    assert found.settings["UV_FIND_LINKS"] == "/wheels"
    assert found.settings["UV_HTTP_TIMEOUT"] == "7"
    assert found.flags == ("--no-index",)
    command = " ".join(map(str, found.install(python, ["one"])))
    assert "secret" not in command
    assert "--no-index" in command
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://e.example/simple")
    assert found.environment() != installer(python).environment()
    assert installer(python).environment()["UV_DEFAULT_INDEX"] == "https://e.example/simple"


def test_a_password_is_in_no_log(tool: str, indexes: tuple[Index, Index], tmp_path: Path) -> None:
    """Neither when it works nor when it fails."""
    public, _ = indexes
    os.environ["PIP_INDEX_URL"] = public.url.replace("//", "//user:secret-word@")
    with pytest.raises(HostError) as caught:
        ensure(Recipe("test", (("absent==1",),)), Silent())
    log = next((tmp_path / "cache" / "environments").glob("*.log"))
    text = log.read_text(encoding="utf-8")
    assert "absent" in text
    assert "secret-word" not in text + str(caught.value.details) + caught.value.problem


def test_an_installer_that_is_none(tool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt name, a uv that is not installed."""
    monkeypatch.setenv("TRITONCTL_INSTALLER", "conda")
    with pytest.raises(ConfigurationError, match="is `conda`; expected pip or uv"):
        installer(Path(sys.executable))
    monkeypatch.setenv("TRITONCTL_INSTALLER", "uv")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigurationError, match="not on PATH"):
        installer(Path(sys.executable))


def test_which_requirements_are_torch_s() -> None:
    """Its own packages, whatever else is asked for."""
    installs = [("torch==2.13.0",), ("--no-deps", "-r", "x.txt", "torchvision"), ("torchmetrics",)]
    assert of_torch(installs) == ("torch==2.13.0", "torchvision")


def test_an_index_that_does_not_answer() -> None:
    """Refused, or no address at all."""
    assert not answers("http://127.0.0.1:9")
    assert not answers("nonsense")
