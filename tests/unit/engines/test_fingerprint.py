# SPDX-License-Identifier: Apache-2.0
"""Equal fingerprint, same engine: what changes it, what does not."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tritonctl.engines.builds import fingerprint
from tritonctl.engines.builds.catalog import builder_named
from tritonctl.engines.builds.fingerprint import FileHashes, build_fingerprint, folder_hash
from tritonctl.engines.builds.requests import build_request
from tritonctl.errors import ConfigurationError
from tritonctl.host.files import sha256

if TYPE_CHECKING:
    from tests.unit.conftest import Sandbox

EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def _of(sandbox: Sandbox) -> str:
    project = sandbox.load()
    memory = project.state / "hashes.json"
    request = build_request(project, "speller")
    builder = builder_named("scripted", project.root)
    hashes = FileHashes(memory)
    digest = build_fingerprint(request, builder, builder.stages_for(None)[0], hashes).digest
    hashes.save()
    return digest


def _with_prompts(sandbox: Sandbox) -> Path:
    prompts = sandbox.root / "prompts.jsonl"
    prompts.write_text('{"text_input": "1"}\n', encoding="utf-8")
    sandbox.data["models"]["speller"]["evaluation"] = {"prompts": "prompts.jsonl"}
    return prompts


def test_nothing_changed(sandbox: Sandbox) -> None:
    """Asking twice gives the same 64 hex digits."""
    first = _of(sandbox)
    assert first == _of(sandbox)
    assert len(first) == 64
    assert int(first, 16) > 0


@pytest.mark.parametrize(
    "change",
    [
        {"precision": "fp32"},
        {"max_batch_size": 5},
        {"max_seq_len": 65},
        {"max_input_len": 9},
        {"tp_size": 2},
        {"kv_cache_dtype": "int8"},
        {"trust_remote_code": True},
        {"allow_pickle": True},
        {"options": {"behaviour": "ok", "other": 1}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_field_of_the_request_counts(sandbox: Sandbox, change: dict[str, Any]) -> None:
    """A changed setting of the engine is another engine."""
    before = _of(sandbox)
    sandbox.engine.update(change)
    assert _of(sandbox) != before


@pytest.mark.parametrize(
    "file",
    [
        "checkpoint/config.json",
        "checkpoint/model.safetensors",
        "builders/scripted/build.py",
        "builders/scripted/builder.toml",
        "prompts.jsonl",
    ],
)
def test_every_file_counts(sandbox: Sandbox, file: str) -> None:
    """One byte more in checkpoint, builder or prompts."""
    _with_prompts(sandbox)
    before = _of(sandbox)
    with (sandbox.root / file).open("ab") as stream:
        stream.write(b"\n")
    assert _of(sandbox) != before


def test_a_task_counts_and_its_absence_is_as_before_there_were_tasks(sandbox: Sandbox) -> None:
    """What says nothing is not in the request's record, so fingerprints and builders stay."""
    _with_prompts(sandbox)
    project = sandbox.load()
    request = build_request(project, "speller")
    stage = builder_named("scripted", project.root).stages_for(None)[0]
    plain = fingerprint.settings_of(request, stage)
    assert "task" not in plain
    assert plain["evaluation"].keys() == {"max_prompts", "max_tokens", "min_exact_match"}
    for change in ({"task": "embedding"}, {"task": "rerank"}):
        changed = request.model_copy(update=change)
        assert fingerprint.settings_of(changed, stage) == plain | change
    sandbox.data["models"]["speller"]["task"] = "embedding"
    assert build_request(sandbox.load(), "speller").task == "embedding"


def test_serving_s_code_that_a_proof_runs_counts(sandbox: Sandbox) -> None:
    """A library of python_backends/ that builder.toml names is one of the builder's sources."""
    library = sandbox.root / "python_backends" / "steplib"
    library.mkdir(parents=True)
    (library / "steps.py").write_text("A = 1\n", encoding="utf-8")
    table = sandbox.root / "builders" / "scripted" / "builder.toml"
    text = table.read_text(encoding="utf-8")
    named = text.replace("runners =", 'proof_libraries = ["steplib"]\nrunners =')
    table.write_text(named, encoding="utf-8")
    before = _of(sandbox)
    assert _of(sandbox) == before
    (library / "steps.py").write_text("A = 2\n", encoding="utf-8")
    assert _of(sandbox) != before
    assert builder_named("scripted", sandbox.root).folders[-1] == library


def test_a_new_and_a_renamed_file_count(sandbox: Sandbox) -> None:
    """Names are content, also in sub-folders."""
    seen = {_of(sandbox)}
    (sandbox.checkpoint / "sub").mkdir()
    (sandbox.checkpoint / "sub" / "f").touch()
    seen.add(_of(sandbox))
    (sandbox.checkpoint / "sub" / "f").rename(sandbox.checkpoint / "sub" / "g")
    seen.add(_of(sandbox))
    assert len(seen) == 3


def test_same_size_and_modification_time_but_other_content(sandbox: Sandbox) -> None:
    """`cp -p` of another checkpoint of the same shape: not to be mistaken for the old one."""
    before = _of(sandbox)
    weights = sandbox.checkpoint / "model.safetensors"
    status = weights.stat()
    weights.write_bytes(weights.read_bytes()[::-1])
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert weights.stat().st_size == status.st_size
    assert _of(sandbox) != before


def test_paths_and_times_do_not_count(sandbox: Sandbox, tmp_path: Path) -> None:
    """The same files elsewhere, touched: the same engine."""
    prompts = _with_prompts(sandbox)
    before = _of(sandbox)
    os.utime(sandbox.checkpoint / "model.safetensors", (1, 1))
    moved = tmp_path / "moved"
    shutil.move(sandbox.checkpoint, moved)
    shutil.move(prompts, tmp_path / "p")
    sandbox.data["models"]["speller"]["checkpoint"] = str(moved)
    sandbox.data["models"]["speller"]["evaluation"]["prompts"] = str(tmp_path / "p")
    assert _of(sandbox) == before


def test_bytecode_and_hidden_files_do_not_count(sandbox: Sandbox) -> None:
    """Running a builder or opening a folder in a file manager changes nothing."""
    before = _of(sandbox)
    (sandbox.root / "builders" / "scripted" / "__pycache__").mkdir()
    (sandbox.root / "builders" / "scripted" / "__pycache__" / "x.pyc").touch()
    (sandbox.checkpoint / ".cache").mkdir()
    (sandbox.checkpoint / ".cache" / "x").touch()
    (sandbox.checkpoint / ".DS_Store").touch()
    assert _of(sandbox) == before


def test_hashes_are_remembered(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second command reads no file at all."""
    before = _of(sandbox)
    monkeypatch.setattr(fingerprint, "sha256", lambda file: pytest.fail(f"{file} was read again"))
    assert _of(sandbox) == before


def test_only_what_changed_is_read_again(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """One touched file is one file read."""
    _of(sandbox)
    read: list[str] = []

    def counting(file: Path) -> str:
        read.append(file.name)
        return sha256(file)

    monkeypatch.setattr(fingerprint, "sha256", counting)
    (sandbox.checkpoint / "config.json").touch()
    _of(sandbox)
    assert read == ["config.json"]


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"\xff"])
def test_damaged_memory_is_no_harm(sandbox: Sandbox, damage: bytes) -> None:
    """Everything is read again, the result is the same."""
    before = _of(sandbox)
    memory = sandbox.root / ".tritonctl" / "hashes.json"
    memory.write_bytes(damage)
    assert _of(sandbox) == before
    assert json.loads(memory.read_text(encoding="utf-8"))


def test_known_digests(tmp_path: Path) -> None:
    """Real SHA-256, of a file longer than a block too."""
    empty, large = tmp_path / "empty", tmp_path / "large"
    empty.touch()
    large.write_bytes(b"a" * 3_000_000)
    hashes = FileHashes(tmp_path / "memory")
    assert hashes.of(empty) == EMPTY_SHA256
    assert hashes.of(large) == "2a152c894398719c0570f83fac34ac03a0f6e8e474b995c2403aa5434f7b9dd4"


def test_weights_outside_an_onnx_file_count(tmp_path: Path) -> None:
    """The file names them; what else lies in its folder does not count."""
    graph, weights, other = tmp_path / "g.onnx", tmp_path / "w" / "g.data", tmp_path / "notes.txt"
    weights.parent.mkdir()
    graph.write_bytes(b"\x0a\x08location\x12\x08w/g.data")
    for file in (weights, other):
        file.write_bytes(b"1")
    hashes = FileHashes(tmp_path / ".hashes.json")
    before = fingerprint.content_hash(graph, hashes)
    other.write_bytes(b"22")
    assert fingerprint.content_hash(graph, hashes) == before
    weights.write_bytes(b"22")
    assert fingerprint.content_hash(graph, hashes) != before


def test_only_what_an_onnx_file_names_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder may be somebody's home; a path out of it is not followed."""
    folder = tmp_path / "home"
    folder.mkdir()
    long, outside = "d" * 150 + ".data", "../outside.data"
    for name in ("near.data", long, outside):
        (folder / name).write_bytes(b"1")
    entries = b"".join(
        b"\x0a\x08location\x12"
        + bytes([len(name)] if len(name) < 128 else [len(name) & 127 | 128, 1])
        + name.encode()
        for name in ("near.data", long, outside, "/etc/hosts", "absent", "a\0b", "near.data")
    )
    (folder / "g.onnx").write_bytes(entries + b"\x0a\x08location\x12")
    monkeypatch.setattr(os, "walk", lambda *_: pytest.fail("the folder is walked"))
    found = fingerprint.external_data_files(folder / "g.onnx")
    assert found == sorted([folder / long, folder / "near.data"])


def test_folder_hash_does_not_mix_names_and_contents(tmp_path: Path) -> None:
    """Two folders whose concatenated names and contents are alike differ."""
    for folder, name, content in (("a", "x", "yz"), ("b", "xy", "z")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(content, encoding="utf-8")
    hashes = FileHashes(tmp_path / "memory")
    assert folder_hash(tmp_path / "a", hashes) != folder_hash(tmp_path / "b", hashes)


def test_broken_link_in_a_checkpoint(sandbox: Sandbox) -> None:
    """A hub's cache is made of links: one to nowhere is a download that has not ended."""
    (sandbox.checkpoint / "gone").symlink_to("/no/such/file")
    with pytest.raises(ConfigurationError, match=r"checkpoint/gone is a link to /no/such/file"):
        _of(sandbox)


def test_what_has_no_end_is_not_read(tmp_path: Path) -> None:
    """A pipe in the folder would be waited for."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text("{}", encoding="utf-8")
    hashes = FileHashes(tmp_path / "memory.json")
    before = folder_hash(folder, hashes)
    os.mkfifo(folder / "pipe")
    assert folder_hash(folder, hashes) == before


def test_the_machine_counts(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine of one architecture is none for another."""
    before = _of(sandbox)
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert _of(sandbox) != before


def test_the_order_in_which_a_folder_lists_its_files_does_not_count(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy may list them otherwise."""
    before = _of(sandbox)
    listed = fingerprint._content_files
    monkeypatch.setattr(fingerprint, "_content_files", lambda folder: listed(folder)[::-1])
    assert _of(sandbox) == before


def test_what_a_stage_ignores_does_not_count(sandbox: Sandbox) -> None:
    """Neither a file's content nor a setting: the engine would be the same."""
    project = sandbox.load()
    builder = builder_named("scripted", project.root)
    request = build_request(project, "speller")
    [stage] = builder.stages_for(None)
    memory = sandbox.root / "hashes.json"
    ignoring = stage.model_copy(update={"ignores": ("checkpoint", "limits.max_batch_size")})
    whole = build_fingerprint(request, builder, stage, FileHashes(memory))
    part = build_fingerprint(request, builder, ignoring, FileHashes(memory))
    assert set(whole.inputs) - set(part.inputs) == {"checkpoint"}
    sandbox.engine["max_batch_size"] = 9
    (sandbox.checkpoint / "config.json").write_text("{}", encoding="utf-8")
    other = build_request(sandbox.load(), "speller")
    assert build_fingerprint(other, builder, ignoring, FileHashes(memory)) == part
    assert build_fingerprint(other, builder, stage, FileHashes(memory)) != whole
