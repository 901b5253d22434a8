# SPDX-License-Identifier: Apache-2.0
"""`check --fix` writes only what provably keeps the meaning of a config.pbtxt."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2

from tests.check_models.models import CONFIG, python_model
from tests.unit.checks.repositories import put
from tritonctl.checks.autofix import apply_fixes
from tritonctl.checks.checker import check_repository
from tritonctl.checks.config.meanings import certain_field
from tritonctl.checks.config.schema import model_config_schema
from tritonctl.checks.rules import RULES

_OTHER_MEANINGS = [
    CONFIG + "dynamic_batching { max_queue_delay_milliseconds: 5 }",
    CONFIG + "min_batch_size: 2",
    CONFIG.replace("dims", "shape", 1),
    CONFIG + "maxBatchSize: 4",
    CONFIG.replace("max_batch_size: 8", "max_batch_size: 0\nmaxBatchSize: 4"),
    CONFIG.replace("max_batch_size: 8", "maxBatchSize: 8\nMax_Batch_Size: 4"),
    CONFIG + "version_policy { latest { num_versions: 1 } All { } }",
    CONFIG.replace("TYPE_FP32", "TYPE_FLOAT", 1),
    CONFIG.replace('"m"', '"other"'),
    CONFIG.replace('backend: "python"', 'platform: "onnx"\nensemble_scheduling { }'),
    CONFIG + "instance_group { Count: [ 1, 2 ] }",
    CONFIG + "Dynamic_Batching: true",
]


def config_of(folder: Path) -> Path:
    """Return the path of the only model's configuration."""
    return folder / "m" / "config.pbtxt"


def fixes(folder: Path) -> int:
    """Check, apply the fixes, and return how many were made."""
    report = check_repository(folder)
    fixed = apply_fixes(report)
    assert fixed == sum(bool(finding.edits) for finding in report.findings)
    return fixed


@pytest.mark.parametrize("config", _OTHER_MEANINGS)
def test_another_meaning_is_a_remedy_in_words(config: str, tmp_path: Path) -> None:
    """The file stays as it is, and so does the finding."""
    put(tmp_path, python_model(config))
    errors = [f for f in check_repository(tmp_path).findings if f.severity == "error"]
    assert errors
    assert fixes(tmp_path) == 0
    assert config_of(tmp_path).read_text() == config


def test_what_is_certain_is_written(tmp_path: Path) -> None:
    """Letter case, underscores, quotes, prefixes; what is not certain stays."""
    config = (
        CONFIG.replace("max_batch_size: 8", 'maxBatchSize: "8"')
        .replace("TYPE_FP32", "fp32", 1)
        .replace("TYPE_FP32", "TYPE_FLOAT", 1)
        .replace('"python"', "python")
    )
    put(tmp_path, python_model(config))
    assert [fixes(tmp_path) for _ in range(3)] == [3, 1, 0]  # quotes, once the field is known
    assert config_of(tmp_path).read_text() == CONFIG[::-1].replace("23PF", "TAOLF", 1)[::-1]
    assert [finding.rule for finding in check_repository(tmp_path).findings] == ["TC105"]


def test_a_block_is_named_right_first(tmp_path: Path) -> None:
    """Then the mistakes inside it are visible, and fixed by the next run."""
    put(tmp_path, python_model(CONFIG + "dynamicBatching { preserveOrdering: TRUE }"))
    assert [fixes(tmp_path) for _ in range(4)] == [1, 1, 1, 0]
    assert config_of(tmp_path).read_text().endswith("dynamic_batching { preserve_ordering: true }")


@given(st.sets(st.sampled_from(["max_batch_size: 8", "TYPE_FP32", '"python"', "dims"]), min_size=1))
def test_a_fixed_file_means_what_the_right_file_means(
    tmp_path_factory: pytest.TempPathFactory, wrong: set[str]
) -> None:
    """Whichever certain mistakes are combined, protobuf reads the same message afterwards."""
    config = CONFIG
    for text in wrong:
        other = {"max_batch_size: 8": "maxBatchSize: 8", "dims": "Dims", '"python"': "python"}
        config = config.replace(text, other.get(text, text.lower()))
    folder = put(tmp_path_factory.mktemp("fixed"), python_model(config))
    fixes(folder)
    message = model_config_pb2.ModelConfig()
    text_format.Parse(config_of(folder).read_text(), message)
    assert message == text_format.Parse(CONFIG, model_config_pb2.ModelConfig())


def test_a_link_its_mode_and_its_owner_stay(tmp_path: Path) -> None:
    """Only the content of the file behind the link changes."""
    put(tmp_path / "models", python_model())
    shared = tmp_path / "shared.pbtxt"
    shared.write_text(CONFIG.replace("max_batch_size", "maxBatchSize") + "# \r\n")
    shared.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(shared, 12345, 23456)
    owner = (shared.stat().st_uid, shared.stat().st_gid)
    config = config_of(tmp_path / "models")
    config.unlink()
    config.symlink_to("../../shared.pbtxt")
    assert fixes(tmp_path / "models") == 1
    assert config.is_symlink()
    assert shared.read_bytes().decode() == CONFIG + "# \r\n"
    assert stat.S_IMODE(shared.stat().st_mode) == 0o640
    assert (shared.stat().st_uid, shared.stat().st_gid) == owner
    assert not list(tmp_path.glob(".*"))


_AS_WRITTEN = [
    ('"python"', "\u201cpython\u201d"),
    ('"python"', "\u2018python\u2019"),
    ('"python"', '"python\u201d'),
    ('"m"', "\u201em\u201d # the \u201ccomment\u201d"),
    ("max_batch_size", "\u3000max_batch_size"),
    ("max_batch_size", "\xa0max_batch_size"),
    ("max_batch_size", "max_\u200bbatch_size"),
    ("name", "\ufeffname"),
    ("dims: [ -1", "dims: [ \u22121"),
    ("dims: [ -1", "dims: [ \u20131"),
]
_SIGNED = CONFIG.replace("dims: [ 4", "dims: [ -1")


@pytest.mark.parametrize(("plain", "written"), _AS_WRITTEN)
def test_a_word_processors_characters_become_ascii(
    plain: str, written: str, tmp_path: Path
) -> None:
    """The file that Triton ignored reads as it was meant; comments stay."""
    assert plain in _SIGNED
    put(tmp_path, python_model(_SIGNED.replace(plain, written, 1)))
    assert [fixes(tmp_path) for _ in range(2)] == [1, 0]
    message = text_format.Parse(config_of(tmp_path).read_text(), model_config_pb2.ModelConfig())
    assert message == text_format.Parse(_SIGNED, model_config_pb2.ModelConfig())
    assert ("\u201ccomment\u201d" in config_of(tmp_path).read_text()) == ("comment" in written)


@pytest.mark.parametrize(
    "config",
    [
        CONFIG.replace('"python"', "\u201cpython"),
        CONFIG.replace('"python"', "\u201cpython\u201d") + "{",
        "\ufeff" + CONFIG + "\udcff",
        'name: "m\u201d\u201c',
        'name: "m\u2013n" {',
    ],
)
def test_what_stays_unreadable_is_not_edited(config: str, tmp_path: Path) -> None:
    """Characters alone are not the fault, or nobody can know what was meant."""
    put(tmp_path, python_model())
    written = config.encode("utf-8", "surrogateescape")
    config_of(tmp_path).write_bytes(written)
    assert fixes(tmp_path) == 0
    assert config_of(tmp_path).read_bytes() == written


def test_no_message_has_two_fields_of_one_spelling() -> None:
    """Otherwise letter case and underscores would not tell them apart."""
    for name, message in vars(model_config_schema()).items():
        if hasattr(message, "DESCRIPTOR") and hasattr(message.DESCRIPTOR, "fields_by_name"):
            fields = message.DESCRIPTOR.fields_by_name
            assert [certain_field(each, fields) for each in fields] == list(fields), name


def test_no_example_is_fixed_into_another_meaning(tmp_path: Path) -> None:
    """Of all rules' bad examples, --fix changes none that Triton can read."""
    changed = {}
    for rule in RULES.values():
        folder = put(tmp_path / rule.id, rule.bad_example)
        report = check_repository(folder, rule.target)
        readable = {
            f"{folder}/{name}/config.pbtxt"
            for name in rule.bad_example
            for name in [name.split("/")[0]]
            if _reads(folder / name / "config.pbtxt")
        }
        changed[rule.id] = {f.path for f in report.findings if f.edits} & readable
    assert not any(changed.values())


def _reads(path: Path) -> bool:
    try:
        text_format.Parse(path.read_bytes(), model_config_pb2.ModelConfig())
    except (text_format.ParseError, OSError, UnicodeDecodeError):
        return False
    return True
