# SPDX-License-Identifier: Apache-2.0
"""YAML with positions: right lines, and every malformed file answered with file:line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tritonctl.errors import ConfigurationError
from tritonctl.project.yaml import YamlSource, read_yaml


def _read(tmp_path: Path, text: str) -> YamlSource:
    file = tmp_path / "f.yaml"
    file.write_text(text, encoding="utf-8")
    return read_yaml(file)


def _problem(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        _read(tmp_path, text)
    assert caught.value.exit_code == 3
    assert caught.value.remedy
    return caught.value.problem.replace(f"{tmp_path}/", "")


def test_every_location_has_its_line(tmp_path: Path) -> None:
    """Keys, nested keys and list items are found where they stand."""
    source = _read(tmp_path, "# comment\na:\n  b: 1\n  c:\n    - x\n    - {d: 2}\n")
    assert source.data == {"a": {"b": 1, "c": ["x", {"d": 2}]}}
    lines = {
        location: source.lines[location]
        for location in [("a",), ("a", "b"), ("a", "c", 0), ("a", "c", 1), ("a", "c", 1, "d")]
    }
    assert list(lines.values()) == [2, 3, 5, 6, 6]


def test_where_falls_back_to_the_enclosing_location(tmp_path: Path) -> None:
    """A location that is not in the file is told by the nearest one around it."""
    source = _read(tmp_path, "x: 1\na:\n  b: {}\n")
    assert source.line_of(("a", "b", "missing", 7)) == f"{source.path}:3"
    assert source.line_of(("nowhere",)) == f"{source.path}:1"


def test_scalars_have_yaml_types(tmp_path: Path) -> None:
    """Strings, numbers, booleans and null arrive as such."""
    source = _read(tmp_path, 'a: 1\nb: 0.5\nc: true\nd: "1"\ne:\nf: ünï 字\n')
    assert source.data == {"a": 1, "b": 0.5, "c": True, "d": "1", "e": None, "f": "ünï 字"}


def test_duplicate_key_names_both_lines(tmp_path: Path) -> None:
    """YAML would silently keep the last one."""
    text = "a:\n  b: 1\n  c: 2\n  b: 3\n"
    assert _problem(tmp_path, text) == (
        "f.yaml:4: key `b` appears twice; the first one is on line 2"
    )


def test_duplicate_key_inside_a_list_is_found(tmp_path: Path) -> None:
    """Duplicates are looked for everywhere, not only in nested mappings."""
    assert _problem(tmp_path, "a:\n- {b: 1, b: 2}\n").startswith("f.yaml:2: key `b` appears twice")


def test_merge_keys_give_defaults_that_own_keys_replace(tmp_path: Path) -> None:
    """`<<` merges an anchor; the mapping's own key wins and is told by its own line."""
    source = _read(tmp_path, "base: &base\n  x: 1\n  y: 2\nmine:\n  <<: *base\n  x: 3\n")
    assert source.data["mine"] == {"x": 3, "y": 2}
    assert source.lines["mine", "x"] == 6
    assert source.lines["mine", "y"] == 3


def test_an_alias_of_a_merged_mapping_is_no_duplicate(tmp_path: Path) -> None:
    """A node that is visited twice has already been merged the second time."""
    text = "a: &a {x: 1}\nb: &b {<<: *a, x: 2}\nc: *b\nd: [*b, *b]\n"
    assert _read(tmp_path, text).data["d"] == [{"x": 2}, {"x": 2}]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a: 1\nb: [1, 2\n", "f.yaml:3:1: not valid YAML: "),
        ("a: 1\n\tb: 2\n", "f.yaml:2:1: not valid YAML: "),
        ('a: "open\n', "f.yaml:2:1: not valid YAML: "),
        ("a: *unknown\n", "f.yaml:1:4: not valid YAML: "),
        ("a: 1\n---\nb: 2\n", "f.yaml:2:1: not valid YAML: "),
        ("a: \x00\n", "f.yaml: not valid YAML: "),
    ],
)
def test_bad_syntax_is_told_with_line_and_column(tmp_path: Path, text: str, place: str) -> None:
    """The parser's own mark is used."""
    assert _problem(tmp_path, text).startswith(place)


@pytest.mark.parametrize("text", ["", "# only a comment\n", "- a\n- b\n", "just text\n", "3\n"])
def test_anything_but_a_mapping_is_refused(tmp_path: Path, text: str) -> None:
    """An empty file or a list is no project file."""
    assert _problem(tmp_path, text) == "f.yaml:1: expected a mapping of keys to values"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\nb: !!python/object:os.system {}\n", "f.yaml:2: unsupported value: "),
        ("a: 1\nb: !!python/object/apply:os.getcwd []\n", "f.yaml:2: unsupported value: tag "),
        ("a: 1\nb: !secret x\n", "f.yaml:2: unsupported value: "),
        ("a: 1\nb: 2026-99-99\n", "f.yaml:2: unsupported value: month must be"),
        ("a: 1\nb: {<<: 3}\n", "f.yaml:2: unsupported value: expected a mapping"),
        ("a: 1\nb: &b {c: *b}\n", "f.yaml:2: unsupported value: this anchor contains itself"),
        ("a: 1\nb: &b [*b]\n", "f.yaml:2: unsupported value: this anchor contains itself"),
    ],
)
def test_unsupported_values_are_told_with_their_line(
    tmp_path: Path, text: str, problem: str
) -> None:
    """Tags, impossible dates, wrong merges and anchors inside themselves are no bugs of ours."""
    assert _problem(tmp_path, text).startswith(problem)


def test_not_utf8(tmp_path: Path) -> None:
    """Latin-1 is refused by name, not decoded into something else."""
    file = tmp_path / "f.yaml"
    file.write_bytes("a: café\n".encode("latin-1"))
    with pytest.raises(
        ConfigurationError, match=r"f\.yaml cannot be read: 'utf-8' codec"
    ) as caught:
        read_yaml(file)
    assert "UTF-8" in caught.value.remedy


def test_missing_file_and_folder(tmp_path: Path) -> None:
    """A file that is not there leads to `init`; a folder is named as unreadable."""
    with pytest.raises(ConfigurationError, match=r"none\.yaml does not exist") as caught:
        read_yaml(tmp_path / "none.yaml")
    assert "tritonctl init" in caught.value.remedy
    with pytest.raises(ConfigurationError, match=r"cannot be read: .*Is a directory"):
        read_yaml(tmp_path)
