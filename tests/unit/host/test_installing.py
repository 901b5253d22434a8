# SPDX-License-Identifier: Apache-2.0
"""Environments that the real uv makes, from indexes on loopback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.http_proxy import proxying
from tests.package_index import Index, indexing, wheel
from tritonctl.errors import HostError
from tritonctl.host.environments import EnvironmentRecipe, ensure_environment, environment_python
from tritonctl.host.installer import installer, pip_settings
from tritonctl.host.progress import ProgressStep, Silent
from tritonctl.host.torch_index import is_reachable, torch_requirements

pytestmark = pytest.mark.timeout(240)
TORCH = EnvironmentRecipe(
    "test", (("torch==2.13.0",), ("--no-deps", "other==1.0")), probe="import torch"
)


class Told:
    """Progress that keeps the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    @contextmanager
    def step(self, title: str) -> Iterator[ProgressStep]:
        with Silent().step(title) as step:
            yield step


@pytest.fixture(autouse=True)
def default_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings of pip or uv, and an empty cache."""
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))


@pytest.fixture
def indexes(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Index, Index]]:
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
    """The installed packages."""
    code = (
        "import importlib.metadata as m, json;"
        "print(json.dumps({d.name: d.version for d in m.distributions()}))"
    )
    done = subprocess.run(
        [environment_python(folder), "-c", code], capture_output=True, text=True, check=True
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_torch_for_cpus(indexes: tuple[Index, Index]) -> None:
    """The version that is asked for, of PyTorch's index; the rest of the configured one."""
    public, own = indexes
    told = Told()
    folder = ensure_environment(TORCH, told)
    assert versions(folder) == {"torch": "2.13.0+cpu", "other": "1.0"}
    assert f"PyTorch for CPUs came from {own.url}" in told.notes
    assert not any("/other/" in path for path in own.asked)
    assert not any("cudalibraries" in path for path in public.asked)
    assert "uv = " in (folder / "pyvenv.cfg").read_text(encoding="utf-8")


@pytest.mark.parametrize("why", ["down", "without it"])
def test_torch_of_the_configured_index(indexes: tuple[Index, Index], why: str) -> None:
    """PyTorch's index is down, or lacks the version: told in one line, and it goes on."""
    _, own = indexes
    own.down = why == "down"
    own.wheels.pop("torch-2.13.0+cpu-py3-none-any.whl")
    told = Told()
    folder = ensure_environment(TORCH, told)
    assert versions(folder) == {"torch": "2.13.0", "other": "1.0", "cudalibraries": "1.0"}
    [note] = [note for note in told.notes if "configured index" in note]
    assert ("does not answer" in note) is own.down


def test_no_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Local wheels are enough where pip may use no index, and PyTorch's index is not asked."""
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "torch-1.0-py3-none-any.whl").write_bytes(wheel("torch", "1.0", [], 0))
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("TRITONCTL_TORCH_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    told = Told()
    folder = ensure_environment(EnvironmentRecipe("test", (("torch==1.0",),)), told)
    assert versions(folder) == {"torch": "1.0"}
    assert told.notes == []


@pytest.mark.parametrize("excepted", [False, True])
def test_a_proxy(
    indexes: tuple[Index, Index], monkeypatch: pytest.MonkeyPatch, excepted: bool
) -> None:
    """Everything goes through it: PyTorch's index, wheels; nothing to a host of NO_PROXY."""
    public, _ = indexes
    host = urlsplit(public.url).netloc
    with proxying(host) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("PIP_INDEX_URL", "http://packages.example/simple")
        monkeypatch.setenv("PIP_TRUSTED_HOST", "packages.example")
        monkeypatch.setenv("TRITONCTL_TORCH_INDEX", "http://torch.example/simple")
        if excepted:
            monkeypatch.setenv("PIP_INDEX_URL", public.url)
            monkeypatch.setenv("TRITONCTL_TORCH_INDEX", public.url)
            monkeypatch.setenv("NO_PROXY", "127.0.0.1")
            monkeypatch.setenv("no_proxy", "127.0.0.1")
        told = Told()
        assert versions(ensure_environment(TORCH, told))["torch"] == "2.13.0"
    assert set(proxy.hosts) == (set() if excepted else {"packages.example", "torch.example"})


def test_what_needs_a_gpu_gets_cuda(indexes: tuple[Index, Index]) -> None:
    """PyTorch's index of CPU wheels is not asked, and the environment is another."""
    _, own = indexes
    on_gpus = EnvironmentRecipe(TORCH.name, TORCH.installs, probe=TORCH.probe, gpu=True)
    assert on_gpus.fingerprint() != TORCH.fingerprint()
    assert versions(ensure_environment(on_gpus, Silent()))["torch"] == "2.13.0"
    assert own.asked == []


def test_packages_of_pythonpath_are_not_installed_ones(
    indexes: tuple[Index, Index], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip leaves out what it finds on PYTHONPATH, and the environment would lack it."""
    archive, theirs = tmp_path / "other.zip", tmp_path / "theirs"
    archive.write_bytes(wheel("other", "1.0", [], 0))
    shutil.unpack_archive(archive, theirs)
    monkeypatch.setenv("PYTHONPATH", str(theirs))
    folder = ensure_environment(
        EnvironmentRecipe("test", (("other==1.0",),), probe="import other"), Silent()
    )
    monkeypatch.delenv("PYTHONPATH")
    assert versions(folder) == {"other": "1.0"}
    assert any("other-1.0" in path for path in indexes[0].asked)


def test_pip_s_settings_are_uv_s(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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


def test_a_password_is_in_no_log(indexes: tuple[Index, Index], tmp_path: Path) -> None:
    """Neither when it works nor when it fails."""
    public, _ = indexes
    os.environ["PIP_INDEX_URL"] = public.url.replace("//", "//user:secret-word@")
    with pytest.raises(HostError) as caught:
        ensure_environment(EnvironmentRecipe("test", (("absent==1",),)), Silent())
    log = next((tmp_path / "cache" / "environments").glob("*.log"))
    text = log.read_text(encoding="utf-8")
    assert "absent" in text
    assert "secret-word" not in text + str(caught.value.details) + caught.value.problem


def test_which_requirements_are_torch_s() -> None:
    """Its own packages, whatever else is asked for."""
    installs = [("torch==2.13.0",), ("--no-deps", "-r", "x.txt", "torchvision"), ("torchmetrics",)]
    assert torch_requirements(installs) == ("torch==2.13.0", "torchvision")


def test_an_index_that_does_not_answer() -> None:
    """Refused, or no address at all."""
    assert not is_reachable("http://127.0.0.1:9")
    assert not is_reachable("nonsense")
