# SPDX-License-Identifier: Apache-2.0
"""Artefacts on disk: found, addressed, compared, verified, and who needs them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tritonctl.engines.artefacts.differences import (
    compare_artefacts,
    explain_hidden_difference,
    manifest_fields,
)
from tritonctl.engines.artefacts.store import (
    StoredArtefact,
    find_artefact,
    stored_artefacts,
)
from tritonctl.engines.artefacts.usage import ArtefactUse, find_uses
from tritonctl.engines.builds.engine import build_engine
from tritonctl.errors import RepositoryError, UsageError
from tritonctl.host.progress import Silent
from tritonctl.project.file import load_profiles
from tritonctl.repository.publish import render
from tritonctl.store.entries import verify

if TYPE_CHECKING:
    from tests.unit.conftest import Sandbox


def _build(sandbox: Sandbox, **engine: Any) -> Path:
    """Build the model with changed engine settings, which stay in the project file."""
    sandbox.engine.update(engine)
    return build_engine(sandbox.load(), "speller", Silent()).folder


def _artefacts(sandbox: Sandbox) -> list[StoredArtefact]:
    return stored_artefacts(load_profiles(sandbox.file, environment={})[None])


def _one(sandbox: Sandbox) -> StoredArtefact:
    (stored,) = _artefacts(sandbox)
    return stored


def _uses(sandbox: Sandbox) -> dict[str, ArtefactUse]:
    profiles = load_profiles(sandbox.file, environment={})
    found = find_uses(profiles, stored_artefacts(profiles[None]))
    return {folder.name: use for folder, use in found.items()}


def _edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a manifest in place."""
    manifest = folder / "manifest.json"
    record = json.loads(manifest.read_text(encoding="utf-8"))
    change(record)
    manifest.write_text(json.dumps(record), encoding="utf-8")


def _refused(artefacts: list[StoredArtefact], address: str) -> str:
    with pytest.raises(UsageError) as caught:
        find_artefact(artefacts, address)
    return f"{caught.value.problem}; {caught.value.remedy}"


def test_artefacts_newest_first(built: Sandbox) -> None:
    """By model, then age; what hides or is a file is no artefact."""
    old = _one(built).folder
    new = _build(built, precision="fp32")
    os.utime(old / "manifest.json", (1000, 1000))
    (old.parent / ".removed-x").mkdir()
    (old.parent / "notes.txt").touch()
    assert [stored.folder for stored in _artefacts(built)] == [new, old]
    first, second = _artefacts(built)
    assert (first.precision, second.precision, second.made_at) == ("fp32", "int8", 1000)
    reported = (old / "engine").glob("*"), (old / "tokenizer").glob("*")
    assert second.size == sum(file.stat().st_size for files in reported for file in files)


def test_addresses(built: Sandbox) -> None:
    """A model with one artefact, a beginning of a fingerprint, both, the folder's own name."""
    only = _one(built)
    assert only.record is not None
    digits = only.record.fingerprint
    for address in ("speller", digits[:4], digits, f"speller/{digits[:1]}", only.folder.name):
        assert find_artefact([only], address) == only, address


def test_ambiguous_and_unknown_addresses(built: Sandbox) -> None:
    """The candidates are named, so that one can be copied."""
    _build(built, precision="fp32")
    artefacts = _artefacts(built)
    text = _refused(artefacts, "speller")
    assert text.startswith("`speller` matches 2 artefacts: speller/")
    assert all(stored.name in text for stored in artefacts)
    assert _refused(artefacts, "zz").startswith("no artefact `zz`; expected one of: speller/")
    assert _refused(artefacts, "speller/").startswith("no artefact `speller/`")
    assert _refused([], "speller") == "no artefact `speller`; make one: `tritonctl build`"


def test_stages_have_their_name_in_the_folder(built: Sandbox) -> None:
    """`quantise-<fingerprint>` is addressed like any other, or by that whole name."""
    folder = _one(built).folder
    os.rename(folder, folder.with_name(f"quantise-{folder.name}"))
    _edit(folder.with_name(f"quantise-{folder.name}"), lambda r: r.update(stage="quantise"))
    stored = _one(built)
    assert stored.record is not None
    assert stored.record.stage == "quantise"
    assert verify(stored, Silent()) == []
    assert find_artefact([stored], folder.name[:5]) == stored
    assert find_artefact([stored], f"quantise-{folder.name}") == stored


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "manifest.json cannot be read: No such file or directory"),
        ('{"fingerprint": ', "manifest.json cannot be read: not JSON: "),
        ('{"fingerprint": "0"}', "manifest.json cannot be read: `builder` is missing"),
    ],
)
def test_unreadable_manifests_are_listed(built: Sandbox, text: str | None, problem: str) -> None:
    """One damaged artefact hides no other; showing it says what is wrong and what to do."""
    folder = _one(built).folder
    (folder / "manifest.json").unlink()
    if text is not None:
        (folder / "manifest.json").write_text(text, encoding="utf-8")
    stored = _one(built)
    assert (stored.problem or "").startswith(problem)
    assert [finding.kind for finding in verify(stored, Silent())] == ["manifest"]
    assert stored.is_foreign == (text is None)
    with pytest.raises(RepositoryError, match=r"speller/\w{16}: .*manifest.json") as caught:
        manifest_fields(stored)
    assert caught.value.remedy == "make it again: `tritonctl build --force speller`"


def test_a_manifest_of_another_version_is_read(built: Sandbox) -> None:
    """Fields that this version does not know are kept, shown and compared."""
    left = _one(built)
    _edit(left.folder, lambda record: record["request"].update(novel={"a": 1}))
    assert ("request.novel.a", 1) in manifest_fields(_one(built))
    assert [d.field for d in compare_artefacts(left, _one(built))] == ["request.novel.a"]


def test_a_whole_artefact_verifies(built: Sandbox) -> None:
    """The host's own files beside it are expected."""
    assert verify(_one(built), Silent()) == []


def test_damage_is_named(built: Sandbox) -> None:
    """Changed bytes, another size, a missing file, an extra one, a link: each by its path."""
    stored = _one(built)
    engine, tokenizer = stored.folder / "engine", stored.folder / "tokenizer"
    xml = engine / "openvino_model.xml"
    xml.write_bytes(xml.read_bytes().swapcase())
    (engine / "openvino_model.bin").write_bytes(b"short")
    (tokenizer / "tokenizer.json").unlink()
    os.replace(tokenizer / "tokenizer_config.json", engine / "stray")
    (tokenizer / "tokenizer_config.json").symlink_to(engine / "stray")
    found = verify(stored, Silent())
    assert [(f.kind, f.path, f.detail.split()[-1]) for f in found] == [
        ("different", "engine/openvino_model.bin", "69"),
        ("different", "engine/openvino_model.xml", "differs"),
        ("missing", "tokenizer/tokenizer.json", "bytes"),
        ("different", "tokenizer/tokenizer_config.json", "file"),
        ("extra", "engine/stray", "bytes"),
    ]


def test_a_manifest_in_the_wrong_folder_is_damage(built: Sandbox) -> None:
    """Copied by hand, say: the folder's name promises another engine."""
    folder = _one(built).folder
    os.rename(folder, folder.with_name("0" * 16))
    (finding,) = verify(_one(built), Silent())
    assert finding.detail == f"the manifest belongs to {folder.name}, not this folder"


def test_differences_are_semantic(built: Sandbox) -> None:
    """Values, not text: order and nulls do not count, resolved limits are told once, numbers say
    by how much, and paths come last, as places.
    """
    left = _one(built)
    other = _build(built, precision="fp32", max_seq_len=32)

    def change(record: dict[str, Any]) -> None:
        record["request"] = {"gone": None, **dict(reversed(record["request"].items()))}
        record["request"]["checkpoint"] = "/elsewhere"
        record["result"]["versions"]["python"] = "2.7"

    _edit(other, change)
    right = next(stored for stored in _artefacts(built) if stored.folder == other)
    found = compare_artefacts(left, right)
    assert [(d.field, d.new, d.change) for d in found if not d.field.startswith("files")] == [
        ("limits.max_input_len", 31, -32.0),
        ("limits.max_seq_len", 32, -32.0),
        ("request.precision", "fp32", None),
        ("versions.python", "2.7", None),
        ("request.checkpoint", "/elsewhere", None),
    ]
    assert [d.field for d in found if d.is_path] == ["request.checkpoint"]
    assert [d.field for d in found if d.field.startswith("files")] == [
        "files.engine/openvino_model.xml.sha256"
    ]
    assert explain_hidden_difference(left, right, found) is None


def test_evaluations_are_compared(built: Sandbox) -> None:
    """Figures with their change; an engine without them differs from one with them."""
    left = _one(built)
    figures = {"prompts": 200, "exact_match": 0.5}
    _edit(left.folder, lambda record: record["result"].update(evaluation=figures))
    right = _one(built)
    assert [(d.field, d.old, d.new) for d in compare_artefacts(left, right)] == [
        ("evaluation.prompts", None, 200),
        ("evaluation.exact_match", None, 0.5),
    ]


def test_another_checkpoint_is_a_difference(built: Sandbox) -> None:
    """By its hash, although nothing in the request differs."""
    left = _one(built)
    (built.checkpoint / "model.safetensors").write_bytes(b"other weights")
    other = _build(built)
    right = next(stored for stored in _artefacts(built) if stored.folder == other)
    found = compare_artefacts(left, right)
    assert [d.field for d in found if not d.is_path] == ["inputs.checkpoint"]
    assert explain_hidden_difference(left, right, found) is None
    assert explain_hidden_difference(left, left, compare_artefacts(left, left)) is None


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({}, "the checkpoint, the prompts or the builder's files"),
        (None, "architectures differ"),
    ],
)
def test_a_fingerprint_alone_differs(
    built: Sandbox, inputs: dict[str, str] | None, words: str
) -> None:
    """No field says why: a manifest without inputs cannot, another machine is in no field."""
    left = _one(built)

    def change(record: dict[str, Any]) -> None:
        record["fingerprint"] = "0" * 64
        record["inputs"] = record["inputs"] if inputs is None else inputs

    if inputs is not None:
        _edit(left.folder, lambda record: record.update(inputs=inputs))
        left = _one(built)
    _edit(left.folder, change)
    right = _one(built)
    assert compare_artefacts(left, right) == []
    assert words in str(explain_hidden_difference(left, right, []))


def test_profiles_need_their_artefacts(built: Sandbox) -> None:
    """Each profile counts, whichever is chosen; what no profile asks for is in no use."""
    exact = _build(built, precision="fp32")
    stray = _build(built, precision="int8", max_batch_size=2)
    built.engine["max_batch_size"] = 4
    built.data["profiles"] = {"exact": {"models": {"speller": {"engine": {"precision": "fp32"}}}}}
    built.write()
    uses = _uses(built)
    assert uses[exact.name].profiles == ["exact"]
    assert (uses[stray.name].is_needed, uses[stray.name].profiles) == (False, [])
    (base,) = [use for name, use in uses.items() if name not in (exact.name, stray.name)]
    assert base.profiles == [None]


def test_a_chosen_profile_hides_no_other(built: Sandbox) -> None:
    """TRITONCTL_PROFILE does not change what the project needs without a profile."""
    built.data["profiles"] = {"exact": {"models": {"speller": {"engine": {"precision": "fp32"}}}}}
    built.write()
    profiles = load_profiles(built.file, environment={"TRITONCTL_PROFILE": "exact"})
    precisions = {name: p.models["speller"].engine.precision for name, p in profiles.items()}
    assert precisions == {None: "int8", "exact": "fp32"}


def test_a_rendered_repository_is_a_use(built: Sandbox) -> None:
    """Hard links tell, also in a repository that the project has been pointed away from."""
    folder = _one(built).folder
    render(built.load(), Silent())
    built.data["model_repository"] = "elsewhere"
    _build(built, precision="fp32")
    use = _uses(built)[folder.name]
    assert use.profiles == []
    assert use.repositories == [built.root / "model_repository"]


def test_a_model_that_cannot_be_judged_is_undecided(built: Sandbox) -> None:
    """A checkpoint that is not here (an unmounted disk) does not make its engine useless."""
    os.rename(built.checkpoint, built.root / "away")
    (use,) = _uses(built).values()
    assert use.is_needed
    assert "is not a folder" in use.unknown_reasons[0]


def test_sources_of_a_needed_engine_are_needed(built: Sandbox) -> None:
    """Over all stages; a manifest that names itself as its source ends the search."""
    stage = _build(built, max_batch_size=1)
    first = _build(built, max_batch_size=2)
    final = _build(built, max_batch_size=3)
    repository = built.root / "model_repository"
    repository.mkdir()
    os.link(final / "engine" / "openvino_model.bin", repository / "linked.bin")
    by_folder = {stored.folder: stored.record for stored in _artefacts(built)}

    def fingerprint(folder: Path) -> str:
        record = by_folder[folder]
        assert record is not None
        return record.fingerprint

    for folder, source in ((final, stage), (stage, first), (first, first)):
        _edit(folder, lambda record, source=source: record.update(source=fingerprint(source)))  # type: ignore[misc]
    uses = _uses(built)
    assert uses[final.name].source_of == []
    assert uses[stage.name].source_of == [f"speller/{final.name}"]
    assert uses[first.name].source_of == [f"speller/{final.name}"]
