# SPDX-License-Identifier: Apache-2.0
"""Where `checkpoint: OWNER/NAME` is: in the hub's cache, at the commit that the lock pins."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tritonctl.engines.builds.engine import build_engine, built_engine
from tritonctl.engines.builds.stages import plan_stages
from tritonctl.engines.sources.cache import HubModel, hub_cache, is_hub_id
from tritonctl.engines.sources.checkpoint import checkpoint_path, hub_model_of
from tritonctl.engines.sources.lock_file import pin_commit, pinned_commit
from tritonctl.errors import ConfigurationError
from tritonctl.host.files import write_atomically
from tritonctl.host.progress import Silent

if TYPE_CHECKING:
    from tests.unit.conftest import Cli, Sandbox

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NEWER = COMMIT[::-1]
MODEL = HubModel("org/name")


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub's cache of our own."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return tmp_path / "hf" / "hub"


def put(commit: str = COMMIT, reference: str | None = "main", **files: str) -> Path:
    """Lay out a snapshot as huggingface_hub does: links into blobs/."""
    snapshot = MODEL.snapshot(commit)
    snapshot.mkdir(parents=True)
    contents = {"config.json": '{"model_type": "llama"}', "model.safetensors": "weights"} | files
    for name, text in contents.items():
        blob = MODEL.folder / "blobs" / name
        write_atomically(blob, text)
        (snapshot / name).symlink_to(os.path.relpath(blob, snapshot))
    if reference:
        write_atomically(MODEL.folder / "refs" / reference, commit)
    return snapshot


@pytest.fixture
def named(sandbox: Sandbox) -> Sandbox:
    """A project whose checkpoint is one of the hub."""
    sandbox.data["models"]["speller"]["checkpoint"] = "org/name"
    return sandbox


def found(sandbox: Sandbox) -> Path:
    project = sandbox.load()
    return checkpoint_path(project, project.models["speller"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Qwen/Qwen2.5-0.5B-Instruct", True),
        ("org/name_x.y", True),
        ("gpt2", False),
        ("../name", False),
        ("/org/name", False),
        ("org/name/onnx", False),
        ("org/..", False),
        ("~/name", False),
        ("org/na--me", False),
    ],
)
def test_what_a_hub_id_is(text: str, expected: bool) -> None:
    """OWNER/NAME with the hub's characters; never a path that climbs."""
    assert is_hub_id(text) is expected


def test_the_cache_is_the_hub_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same variables, the same order as huggingface_hub."""
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert hub_cache() == Path("/x/huggingface/hub")
    monkeypatch.setenv("HF_HOME", "/h")
    assert hub_cache() == Path("/h/hub")
    monkeypatch.setenv("HF_HUB_CACHE", "/c")
    assert hub_cache() == Path("/c")


def test_a_fetched_model_is_found_and_built(named: Sandbox) -> None:
    """By the reference that the cache knows; the manifest has the commit."""
    snapshot = put()
    assert found(named) == snapshot
    artefact = build_engine(named.load(), "speller", Silent())
    assert artefact.manifest.revision == COMMIT
    assert not built_engine(named.load(), "speller").is_new


def test_a_folder_of_that_name_wins(named: Sandbox) -> None:
    """What lies in the project is meant."""
    put()
    folder = named.root / "org" / "name"
    folder.mkdir(parents=True)
    project = named.load()
    assert hub_model_of(project, project.models["speller"]) is None
    assert found(named) == folder


def test_the_pinned_commit_is_taken(named: Sandbox) -> None:
    """The branch has moved on in the cache; the lock has not, and it keeps its engines."""
    old, new = put(), None
    new = put(NEWER)
    assert found(named) == new
    pin_commit(named.root, MODEL, COMMIT)
    assert found(named) == old
    project = named.load()
    engine = build_engine(project, "speller", Silent())
    stages = plan_stages(project, "speller")
    from tritonctl.engines.builds.lock import update_lock

    update_lock(project, None, "speller", stages, engine)
    assert pinned_commit(named.root, MODEL) == COMMIT
    lock = json.loads((named.root / "tritonctl.lock").read_text(encoding="utf-8"))
    assert lock["checkpoints"] == {"org/name": COMMIT}
    assert set(lock["profiles"][""]) == {"speller"}


def test_a_revision(named: Sandbox) -> None:
    """A tag by the cache's references, a commit by itself; each is pinned apart."""
    old, new = put(reference="v1"), put(NEWER)
    model = named.data["models"]["speller"]
    model["revision"] = "v1"
    assert found(named) == old
    model["revision"] = NEWER
    assert found(named) == new
    model["revision"] = "v2"
    with pytest.raises(ConfigurationError, match="org/name at v2 has not been fetched"):
        found(named)


def test_what_was_not_fetched(named: Sandbox, cli: Cli) -> None:
    """Exit code 3 and the command that fetches, for every verb that reads the checkpoint."""
    named.write()
    for verb in ("plan", "render", "up"):
        done = cli(verb)
        assert done.returncode == 3, done.stderr
        assert "the hub's org/name has not been fetched" in " ".join(done.stderr.split())
        assert "`tritonctl fetch`" in done.stderr


def test_a_pinned_commit_that_is_not_here(named: Sandbox) -> None:
    """On another machine with another cache."""
    put(NEWER)
    pin_commit(named.root, MODEL, COMMIT)
    with pytest.raises(ConfigurationError, match="has not been fetched at commit 0123456789ab"):
        found(named)


def test_half_of_what_was_announced(named: Sandbox) -> None:
    """A fetch writes down what it has to bring before it begins."""
    snapshot = put()
    record = {"config.json": 23, "model.safetensors": 7, "tokenizer.json": 5, "a.json": 1}
    write_atomically(MODEL.records / f"{COMMIT}.json", json.dumps({"files": record}))
    with pytest.raises(ConfigurationError, match="half-downloaded") as caught:
        found(named)
    assert "tokenizer.json and 1 more files are missing from" in caught.value.problem
    assert "it resumes the download" in caught.value.remedy
    del record["tokenizer.json"], record["a.json"]
    write_atomically(MODEL.records / f"{COMMIT}.json", json.dumps({"files": record}))
    assert found(named) == snapshot
    write_atomically(
        MODEL.records / f"{COMMIT}.json", json.dumps({"files": record | {"config.json": 24}})
    )
    with pytest.raises(ConfigurationError, match=r"config\.json is missing from"):
        found(named)


def test_half_of_what_another_tool_fetched(named: Sandbox) -> None:
    """No weights yet, a shard that an index names, a link whose blob is gone."""
    snapshot = put()
    (snapshot / "model.safetensors").unlink()
    with pytest.raises(ConfigurationError, match=r"model\.safetensors is missing"):
        found(named)
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    (snapshot / "model-1.safetensors").write_bytes(b"1")
    with pytest.raises(ConfigurationError, match=r"model-2\.safetensors is missing"):
        found(named)
    (snapshot / "model-2.safetensors").write_bytes(b"2")
    assert found(named) == snapshot
    (MODEL.folder / "blobs" / "config.json").unlink()
    with pytest.raises(ConfigurationError, match=r"config\.json is missing"):
        found(named)
