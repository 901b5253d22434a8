# SPDX-License-Identifier: Apache-2.0
"""Locks: in step with the requirements they belong to, and enforced by the real uv and pip."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.package_index import wheel
from tritonctl.bundle.wheels import collect_wheels
from tritonctl.engines.builds.catalog import builder_named
from tritonctl.engines.builds.fingerprint import FileHashes, folder_hash
from tritonctl.engines.builds.runners import builder_recipe
from tritonctl.engines.sources.fetch import hub_recipe
from tritonctl.errors import ConfigurationError, HostError
from tritonctl.host.environments import EnvironmentRecipe, ensure_environment, environment_python
from tritonctl.host.hash_mismatch import hash_mismatch
from tritonctl.host.progress import Silent
from tritonctl.host.requirements import (
    VERIFY,
    lock_digest,
    lock_of,
    locked_lines,
    locked_versions,
    refuse_outdated_lock,
    requirement_lines,
    verified_install_arguments,
)
from tritonctl.loadtest.run.environment import generator_recipe
from tritonctl.repository.backends import backend_named
from tritonctl.repository.contents import HandwrittenModel
from tritonctl.repository.server_environment import server_recipe
from tritonctl.runtimes.embedded.gateway import envoy_recipe
from tritonctl.runtimes.kubernetes.manifests import helm_recipe

pytestmark = pytest.mark.timeout(240)
ROOT = Path(__file__).parents[3]
REQUIREMENTS = sorted(
    path
    for pattern in (
        "builders/*/requirements.txt",
        "docker/*requirements.txt",
        "loadtests/requirements.txt",
        "python_backends/**/requirements.txt",
    )
    for path in ROOT.glob(pattern)
)
# They pin each package that is installed: their locks add hashes alone.
WHOLE = [path for path in REQUIREMENTS if path.parent.parent.name == "builders"]
WHOLE += [
    ROOT / "docker" / f"{name}_requirements.txt" for name in ("envoy", "helm", "tritonserver")
]
_LOCKED = re.compile(r"[a-z0-9.-]+==\S+( ; [^\\]+?)?( --hash=sha256:[0-9a-f]{64})+")


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _normalised(lines: list[str]) -> set[str]:
    parsed = [Requirement(line) for line in lines]
    return {f"{canonicalize_name(each.name)}{each.specifier}" for each in parsed}


@pytest.mark.parametrize("requirements", REQUIREMENTS, ids=_name)
def test_a_lock_is_in_step(requirements: Path) -> None:
    """`make locks` was run: it has each requirement, every line has hashes, and no index is named.

    torch is in none: its CPU wheels have other hashes than the public index's.
    """
    lock = requirements.with_suffix(".lock")
    assert lock_of(requirements) == lock
    refuse_outdated_lock(lock)
    lines = locked_lines(lock)
    assert [line for line in lines if not _LOCKED.fullmatch(line)] == []
    assert "://" not in lock.read_text(encoding="utf-8")
    assert not any(line.startswith("torch==") for line in lines)
    if requirements in WHOLE:
        pins = [line for _, line in requirement_lines(requirements)]
        assert _normalised(locked_versions([lock])) == _normalised(pins)


def test_backends_agree() -> None:
    """They share an environment: a package has one version in all their locks."""
    folder = ROOT / "python_backends"
    pins = _normalised(locked_versions(folder.glob("**/requirements.lock")))
    names = [pin.partition("==")[0] for pin in pins]
    assert sorted(names) == sorted(set(names))


def test_every_environment_is_verified() -> None:
    """Each installs its requirements by a lock, and all else is known to have none."""
    recipes = [hub_recipe(), generator_recipe(), envoy_recipe(), helm_recipe()]
    recipes += [server_recipe([backend_named("tokenizer"), backend_named("openvino_engine")])]
    stages = {"tensorrt_llm": "quantise"}
    for name in ("onnxruntime", "openvino", "tensorrt_llm"):
        builder = builder_named(name)
        stage = next((each for each in builder.stages if each.name == stages.get(name)), None)
        recipes.append(builder_recipe(builder, stage))
    unverified = [each for recipe in recipes for each in recipe.installs if VERIFY not in each]
    assert unverified == [("torch==2.13.0",)] * 3
    for recipe in recipes:
        assert (recipe.folder or ROOT) / recipe.installs[0][-1] in {
            path.with_suffix(".lock") for path in REQUIREMENTS
        }


def _lock(folder: Path, version: str, *digests: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "requirements.txt").write_text(f"one=={version}\n", encoding="utf-8")
    hashes = "".join(f" \\\n    --hash=sha256:{digest}" for digest in digests)
    text = f"# made\none=={version}{hashes}\n"
    (folder / "requirements.lock").write_text(text, encoding="utf-8")


@pytest.fixture
def content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """The only wheel that pip and uv find, in a folder of wheels."""
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")):
            monkeypatch.delenv(name)
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    content = wheel("one", "1.0", [], 0)
    (wheels / "one-1.0-py3-none-any.whl").write_bytes(content)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    return content


@pytest.fixture
def recipe(tmp_path: Path) -> EnvironmentRecipe:
    """An environment that is installed from a lock."""
    installs = (verified_install_arguments("requirements.lock"),)
    return EnvironmentRecipe("test", installs, folder=tmp_path / "own", probe="import one")


def test_the_right_file(
    tmp_path: Path, content: bytes, recipe: EnvironmentRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the hashes is enough; a user's constraint without a version stands in no way."""
    (tmp_path / "constraints.txt").write_text("torch<=9\n", encoding="utf-8")
    monkeypatch.setenv("PIP_CONSTRAINT", str(tmp_path / "constraints.txt"))
    _lock(tmp_path / "own", "1.0", "0" * 64, hashlib.sha256(content).hexdigest())
    assert environment_python(ensure_environment(recipe, Silent())).exists()


def test_another_file_is_refused(tmp_path: Path, content: bytes, recipe: EnvironmentRecipe) -> None:
    """With its name, its hash, where it came from, the lock, the causes; nothing is left."""
    _lock(tmp_path / "own", "1.0", *(f"{number:064}" for number in range(40)))
    with pytest.raises(HostError) as caught:
        ensure_environment(recipe, Silent())
    assert caught.value.exit_code == 4
    problem = caught.value.problem
    assert problem.startswith("cannot create the test environment: the file of one==1.0 (SHA-256 ")
    assert hashlib.sha256(content).hexdigest() in problem
    assert f"from {tmp_path / 'wheels'} " in problem
    assert str(tmp_path / "own" / "requirements.lock") in problem
    assert "a wheel of your own" in caught.value.remedy
    assert "run the command again" in caught.value.remedy
    left = {path.suffix for path in (tmp_path / "cache" / "environments").iterdir()}
    assert left == {".lock", ".log"}


def test_a_missing_hash_is_an_error(
    tmp_path: Path, content: bytes, recipe: EnvironmentRecipe
) -> None:
    """A line without one installs nothing."""
    _lock(tmp_path / "own", "1.0")
    with pytest.raises(HostError) as caught:
        ensure_environment(recipe, Silent())
    assert "must have a hash" in (caught.value.details or "")


def test_an_outdated_lock(tmp_path: Path, content: bytes, recipe: EnvironmentRecipe) -> None:
    """Whoever changes requirements.txt is told of the lock before anything is installed."""
    _lock(tmp_path / "own", "1.0", hashlib.sha256(content).hexdigest())
    (tmp_path / "own" / "requirements.txt").write_text("One>=1.1\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"is out of date: .* One>=1\.1 of requirements"):
        ensure_environment(recipe, Silent())
    assert not (tmp_path / "cache" / "environments").exists()


def test_a_bundle_takes_no_other_file(
    tmp_path: Path, content: bytes, recipe: EnvironmentRecipe
) -> None:
    """pip collects wheels, and says where the file is."""
    _lock(tmp_path / "own", "1.0", *(f"{number:064}" for number in range(40)))
    source = tmp_path / "tritonctl-1.0-py3-none-any.whl"
    source.write_bytes(wheel("tritonctl", "1.0", [], 0))
    with pytest.raises(HostError) as caught:
        collect_wheels(source, [recipe], tmp_path / "collected", Silent())
    assert hashlib.sha256(content).hexdigest() in caught.value.problem
    assert "/wheels/one-1.0-py3-none-any.whl is not one of those in" in caught.value.problem
    assert str(tmp_path / "own" / "requirements.lock") in caught.value.problem
    _lock(tmp_path / "own", "1.0", hashlib.sha256(content).hexdigest())
    collect_wheels(source, [recipe], tmp_path / "again", Silent())
    assert (tmp_path / "again" / "one-1.0-py3-none-any.whl").read_bytes() == content


def test_hashes_alone_change_no_fingerprint(tmp_path: Path, recipe: EnvironmentRecipe) -> None:
    """Of an environment, of a builder's folder: a version's new file for another system.

    Versions count, and so does all that is no lock.
    """
    folder = tmp_path / "own"

    def prints() -> tuple[str, ...]:
        hashes = FileHashes(tmp_path / "hashes.json")
        lock = lock_digest(folder / "requirements.lock")
        return recipe.fingerprint(), folder_hash(folder, hashes), lock

    _lock(folder, "1.0", "0" * 64)
    first = prints()
    _lock(folder, "1.0", "0" * 64, "1" * 64)
    assert prints() == first
    _lock(folder, "1.1", "0" * 64)
    assert not set(first) & set(prints())


def test_a_file_that_is_no_lock(tmp_path: Path) -> None:
    """Another tool's, without hashes: requirements are installed as they are."""
    _lock(tmp_path / "own", "1.0")
    assert lock_of(tmp_path / "own" / "requirements.txt") is None
    assert lock_of(tmp_path / "requirements.txt") is None


def test_requirements_of_one_s_own(tmp_path: Path) -> None:
    """They need no hashes. They are installed second, with all others, so that versions fit."""
    own = HandwrittenModel("mine", tmp_path)
    tokenizer = backend_named("tokenizer")
    (tmp_path / "requirements.txt").write_text("tokenizers==0.23.3\n", encoding="utf-8")
    assert server_recipe([tokenizer, own]).installs == server_recipe([tokenizer]).installs
    (tmp_path / "requirements.txt").write_text("wcwidth\n", encoding="utf-8")
    verified, rest = server_recipe([tokenizer, own]).installs
    assert (verified,) == server_recipe([tokenizer]).installs
    assert rest == (
        "-r",
        str(tokenizer.folder / "requirements.txt"),
        "-r",
        str(tmp_path / "requirements.txt"),
    )


def test_other_errors_are_none_of_it() -> None:
    """A package that the index lacks has no wrong hash."""
    assert hash_mismatch("ERROR: No matching distribution found for one==1") is None
