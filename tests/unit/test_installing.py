# SPDX-License-Identifier: Apache-2.0
"""Environments made by the real pip and the real uv, from indexes on loopback."""

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
from tritonctl.errors import ConfigurationError, HostError
from tritonctl.host.download_size import DownloadSize, download_size
from tritonctl.host.environments import Recipe, ensure, environment_python
from tritonctl.host.installer import Installer, installer, pip_settings, sources
from tritonctl.host.interpreters import running
from tritonctl.host.progress import Silent, Step
from tritonctl.host.torch_index import answers, of_torch
from tritonctl.host.units import human_bytes

# Environments of the real pip: 4 s of a core each, of which a busy machine has a tenth.
pytestmark = pytest.mark.timeout(240)
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
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
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


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment as `python -m venv` makes it, with pip: seconds of a core."""
    folder = tmp_path_factory.mktemp("empty") / "environment"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    return folder


@pytest.fixture
def copied(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a test of what is installed: pip's environment is a copy. uv makes its own as fast."""
    make = Installer.make

    def copy(tool: Installer, python: Path, folder: Path) -> list[str | Path]:
        return make(tool, python, folder) if tool.uv else ["cp", "-a", f"{empty}/.", folder]

    monkeypatch.setattr(Installer, "make", copy)


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


@pytest.mark.usefixtures("copied")
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


@pytest.mark.usefixtures("copied")
@pytest.mark.parametrize("html", [False, True])
def test_the_size_of_the_download_is_told(
    tool: str, indexes: tuple[Index, Index], html: bool
) -> None:
    """Before it begins: every wheel that comes, once; a page without sizes is asked for each."""
    public, own = indexes
    public.html = own.html = html
    if html:  # such a page says nothing about dependencies either
        public.wheels.pop("other-2.0-py3-none-any.whl")
    told = Told()
    ensure(TORCH, told)
    wheels = [own.wheels["torch-2.13.0+cpu-py3-none-any.whl"]]
    wheels.append(public.wheels["other-1.0-py3-none-any.whl"])
    size = human_bytes(sum(map(len, wheels)))
    least, further = ("at least ", " and what they need") if html else ("", "")
    assert f"test: {least}{size} to download (2 packages{further})" in told.notes


@pytest.mark.usefixtures("copied")
def test_dependencies_count(tool: str, indexes: tuple[Index, Index]) -> None:
    """CUDA's libraries come with PyTorch for GPUs: megabytes here, gigabytes elsewhere."""
    told = Told()
    ensure(Recipe(TORCH.name, (("torch",),), gpu=True), told)
    [note] = [note for note in told.notes if "to download" in note]
    assert note.startswith("test: 3.0 MiB to download (3 packages)")


@pytest.mark.usefixtures("copied")
def test_wheels_that_lie_here(tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing to download from a folder; nothing is told where no index may be asked."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "one-1.0-py3-none-any.whl").write_bytes(wheel("one", "1.0", [], 0))
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "here"))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    recipe, python = Recipe("test", (("--no-deps", "one==1.0"),)), Path(sys.executable)
    found = sources(python, installer(python))
    assert download_size([(False, ["one==1.0"])], running(), found) == DownloadSize(0, 0, 0, False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    told = Told()
    ensure(recipe, told)
    assert told.notes == []


@pytest.mark.usefixtures("copied")
def test_an_index_that_tells_no_size(tool: str, indexes: tuple[Index, Index]) -> None:
    """It is down: told in a line, and the installer says the rest."""
    public, _ = indexes
    public.down = True
    told = Told()
    with pytest.raises(HostError):
        ensure(Recipe("test", (("other==1.0",),)), told)
    assert told.notes == ["test: the index does not tell the size of the download"]


@pytest.mark.usefixtures("copied")
@pytest.mark.parametrize("excepted", [False, True])
def test_a_proxy(
    tool: str, indexes: tuple[Index, Index], monkeypatch: pytest.MonkeyPatch, excepted: bool
) -> None:
    """Everything goes through it: sizes, PyTorch's index, wheels; nothing to a host of NO_PROXY."""
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
        assert versions(ensure(TORCH, told))["torch"] == "2.13.0"
    assert any("to download" in note for note in told.notes)
    assert set(proxy.hosts) == (set() if excepted else {"packages.example", "torch.example"})


@pytest.mark.usefixtures("copied")
def test_what_needs_a_gpu_gets_cuda(tool: str, indexes: tuple[Index, Index]) -> None:
    """PyTorch's index of CPU wheels is not asked, and the environment is another."""
    _, own = indexes
    on_gpus = Recipe(TORCH.name, TORCH.installs, probe=TORCH.probe, gpu=True)
    assert on_gpus.fingerprint() != TORCH.fingerprint()
    assert versions(ensure(on_gpus, Silent()))["torch"] == "2.13.0"
    assert own.asked == []


@pytest.mark.usefixtures("copied")
def test_packages_of_pythonpath_are_not_installed_ones(
    tool: str, indexes: tuple[Index, Index], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip leaves out what it finds on PYTHONPATH, and the environment would lack it."""
    archive, theirs = tmp_path / "other.zip", tmp_path / "theirs"
    archive.write_bytes(wheel("other", "1.0", [], 0))
    shutil.unpack_archive(archive, theirs)
    monkeypatch.setenv("PYTHONPATH", str(theirs))
    folder = ensure(Recipe("test", (("other==1.0",),), probe="import other"), Silent())
    monkeypatch.delenv("PYTHONPATH")
    assert versions(folder) == {"other": "1.0"}, tool
    assert any("other-1.0" in path for path in indexes[0].asked)


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


@pytest.mark.usefixtures("copied")
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
