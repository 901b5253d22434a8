# SPDX-License-Identifier: Apache-2.0
"""The wheel: holds what git holds, and works the same outside the checkout."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.json_page import as_documented
from tests.release_version import problems
from tests.unit.conftest import Sandbox
from tritonctl.host.interpreters import find_interpreter
from tritonctl.project.file import load_project

CHECKOUT = Path(__file__).resolve().parents[1]
CONTENT = (
    "builders",
    "docker",
    "ensembles",
    "python_backends",
    "loadtests",
    "examples/digit-reader",
    "examples/number-finder",
    "examples/number-speller",
)
BUNDLED = "tritonctl/_bundled/"


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as `make dist` builds it: from the source archive of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder)]
    subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True)
    assert [file.suffix for file in sorted(folder.iterdir())] == [".whl", ".gz"]
    return next(folder.glob("*.whl"))


def test_make_dist_is_what_is_tested() -> None:
    """The command of the fixture above is the Makefile's."""
    asked = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", "dist"],  # noqa: S607
        cwd=CHECKOUT,
        check=True,
        capture_output=True,
        text=True,
    )
    assert asked.stdout.splitlines()[-1] == (
        ".venv/bin/python -m build --no-isolation --outdir dist"
    )


def tracked(*paths: str) -> set[str]:
    """The files below some paths that git has or would take."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *paths]
    listing = subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True, text=True)
    names = {name for name in listing.stdout.split("\0") if name}
    return {name for name in names if (CHECKOUT / name).is_file()}


def test_wheel_holds_exactly_the_tracked_content(wheel: Path) -> None:
    """Content folders are complete, nothing that git ignores slips in, lint settings stay home."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    packed = {name.removeprefix(BUNDLED) for name in names if name.startswith(BUNDLED)}
    expected = tracked(*CONTENT)
    assert packed == {name for name in expected if not name.endswith("ruff.toml")}
    modules = {name for name in names if name.startswith("tritonctl/")} - {
        BUNDLED + name for name in packed
    }
    assert modules == tracked("tritonctl")


def test_clone_and_example_are_the_same_project() -> None:
    """The root's tritonctl.yaml and the shipped example differ in their paths alone."""
    clone = load_project(CHECKOUT / "tritonctl.yaml")
    example = load_project(CHECKOUT / "examples" / "number-speller" / "tritonctl.yaml")
    assert clone.path(clone.models["speller"].checkpoint) == example.path(
        example.models["speller"].checkpoint
    )
    assert clone.server == example.server
    assert clone.models["speller"].engine == example.models["speller"].engine


# Makes an environment and runs six commands in it: 7 s of a core.
@pytest.mark.exhaustive
@pytest.mark.timeout(240)
def test_wheel_alone_builds_renders_and_checks(wheel: Path, tmp_path: Path) -> None:
    """Installed in a new environment, outside the clone: it brings all that these need."""
    tritonctl = _installed(wheel, tmp_path / "environment")
    project = Sandbox(tmp_path / "project")

    def run(*arguments: str) -> str:
        command = [str(tritonctl), *arguments]
        done = subprocess.run(
            command, cwd=project.root, check=True, stdout=subprocess.PIPE, text=True
        )
        return str(done.stdout)

    run("build")
    run("render")
    for step in ("tokenizer", "engine", "detokenizer"):  # of python_backends/ and ensembles/
        assert list(project.root.glob(f"model_repository/speller_{step}/*/model.py"))
    run("check")
    run("deploy", "compose")
    assert (project.root / "deploy" / "compose.yaml").is_file()
    # The shipped example, with builders and checkpoint of the wheel.
    example = next(
        tritonctl.parents[1].glob(f"lib/*/site-packages/{BUNDLED}examples/number-speller/*.yaml")
    )
    assert "speller" in run("plan", "--device-memory", "16G", "--project", str(example))
    command = run("build", "--dry-run", "--project", str(example))
    assert f"{example.parents[2]}/builders/openvino/build.py" in command


def _installed(wheel: Path, environment: Path) -> Path:
    """The command in a new environment that has its own tritonctl and our dependencies."""
    venv.create(environment, with_pip=False)
    packages = next(environment.glob("lib/*/site-packages"))
    # Fetching dependencies would take a minute.
    ours = sysconfig.get_path("purelib")
    (packages / "dependencies.pth").write_text(f"{ours}\n", encoding="utf-8")
    python = str(environment / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-index"]
    subprocess.run([*pip, "--no-deps", "--force-reinstall", str(wheel)], check=True)
    place = "import tritonctl; print(tritonctl.__file__)"
    found = subprocess.run([python, "-I", "-c", place], check=True, capture_output=True, text=True)
    assert found.stdout.startswith(str(packages))
    return environment / "bin" / "tritonctl"


@pytest.mark.exhaustive
@pytest.mark.parametrize("version", ["3.12", "3.13", "3.14"])
def test_wheel_on_newer_pythons(wheel: Path, tmp_path: Path, version: str) -> None:
    """With its dependencies from the index: everything imports, and what needs no server works."""
    found = find_interpreter(f"=={version}.*")
    if found is None:
        pytest.skip(f"no Python {version} here")
    environment = tmp_path / "environment"
    subprocess.run([found.path, "-m", "venv", environment], check=True)
    python = environment / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", f"{wheel}[frontend]"], check=True)
    script = Path(__file__).parent / "unit" / "structure" / "without_linux.py"
    subprocess.run([python, "-I", script, "import"], check=True, cwd=tmp_path)
    project = Sandbox(tmp_path / "project")
    for arguments in (["build"], ["render"], ["check"], ["graph", "speller"], ["plan"]):
        command = [str(environment / "bin" / "tritonctl"), *arguments]
        subprocess.run(command, cwd=project.root, check=True)


def test_the_release_workflow() -> None:
    """It keeps no secret, publishes only what was installed, on every Python that is supported."""
    text = (CHECKOUT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    jobs = workflow["jobs"]
    assert "secrets." not in text
    assert "password" not in text.split("jobs:")[1]
    assert workflow["permissions"] == {"contents": "read"}
    assert [name for name, job in jobs.items() if "permissions" in job] == ["publish"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert (jobs["publish"]["needs"], jobs["install"]["needs"]) == ("install", "build")
    metadata = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [
        f"Programming Language :: Python :: {v}"
        for v in jobs["install"]["strategy"]["matrix"]["python"]
    ]
    assert named == [line for line in metadata["classifiers"] if ":: Python ::" in line]


def test_actions_are_pinned_by_commit() -> None:
    """A tag can be moved to other code; the version stands beside the commit, for people."""
    for file in (CHECKOUT / ".github" / "workflows").glob("*.yml"):
        for line in file.read_text(encoding="utf-8").splitlines():
            if "uses:" in line:
                assert re.search(r"uses: [\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line), (
                    line
                )


def test_what_may_be_released() -> None:
    """The tag is the version, and the changelog has a section for it."""
    version = '__version__ = "1.2.3"'
    assert problems("v1.2.3", version, "# Changelog\n\n## 1.2.3 (2026-01-01)\n") == []
    assert len(problems("v1.2.4", version, "## Unreleased\n")) == 2
    assert problems("v1.2.3", version, "## 1.2.30\n") == [
        "CHANGELOG.md has no section `## 1.2.3`: rename `## Unreleased`"
    ]


@pytest.mark.server
@pytest.mark.exhaustive
def test_wheel_in_a_new_environment_goes_from_checkpoint_to_streamed_text(
    wheel: Path, tmp_path: Path
) -> None:
    """`tritonctl quickstart` from the installed wheel, in an empty folder."""
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", wheel], check=True)
    work = tmp_path / "work"
    work.mkdir()
    tritonctl = environment / "bin" / "tritonctl"
    done = subprocess.run(
        [tritonctl, "quickstart", "--json"], cwd=work, check=True, stdout=subprocess.PIPE, text=True
    )
    project = work / "tritonctl-quickstart"
    try:
        record = as_documented("quickstart", done.stdout)
        assert record["project"] == str(project)
        texts = [answer["text_output"] for answer in record["answers"]]
        assert texts[0] == " seven thousand three hundred forty-two"
        assert [text for text in texts if not text] == []
        generate = [str(tritonctl), "generate", "speller", "7 in English:"]
        again = subprocess.run(generate, cwd=project, check=True, stdout=subprocess.PIPE, text=True)
        assert again.stdout == " seven\n"
    finally:
        subprocess.run([tritonctl, "down"], cwd=project, check=True)
