# SPDX-License-Identifier: Apache-2.0
"""Settings written into a YAML file: only what must change does, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tritonctl.errors import ConfigurationError
from tritonctl.project.file import deep_merge, load_project
from tritonctl.tuning.write_back import (
    create_project_edit,
    edit_yaml,
    read_exactly,
    unified_diff,
    write_exactly,
)

FILE = """\
# The service.
schema: tritonctl/v1

models:
  speller: # the ensemble
    checkpoint: c   # where it lies
    engine: {builder: openvino, precision: int8}
    serving:
      # As measured in March.
      instance_group: [{kind: KIND_CPU, count: 1}]  # one is enough
      queue: {max_queue_size: 8, priority_levels: 2}
    # What we promise:
    slo: {ttft_p99_ms: 500}

server: {grpc_port: 8001}
"""
SECTION = ("models", "speller")


def changed(overlay: dict[str, Any], text: str = FILE) -> tuple[list[str], list[str]]:
    """The lines that an edit takes away, and those that it adds."""
    after = edit_yaml(text, SECTION, overlay, file="tritonctl.yaml")
    lines = unified_diff(text, after, "tritonctl.yaml").splitlines()[2:]
    removed, added = ([li[1:] for li in lines if li.startswith(sign)] for sign in "-+")
    return removed, added


def test_a_value_is_replaced_where_it_stands() -> None:
    """In a list of mappings, with the comment behind it."""
    groups = [{"kind": "KIND_CPU", "count": 2}]
    assert changed({"serving": {"instance_group": groups}}) == (
        ["      instance_group: [{kind: KIND_CPU, count: 1}]  # one is enough"],
        ["      instance_group: [{kind: KIND_CPU, count: 2}]  # one is enough"],
    )


def test_a_key_joins_a_mapping_on_one_line() -> None:
    """Behind its last entry."""
    assert changed({"slo": {"itl_p99_ms": 50.5}}) == (
        ["    slo: {ttft_p99_ms: 500}"],
        ["    slo: {ttft_p99_ms: 500, itl_p99_ms: 50.5}"],
    )


def test_a_key_joins_a_block() -> None:
    """As a line of its own, before the comment that belongs to what follows."""
    removed, added = changed({"serving": {"inline_detokenizer": True}})
    assert (removed, added) == ([], ["      inline_detokenizer: true"])
    after = edit_yaml(
        FILE, SECTION, {"serving": {"inline_detokenizer": True}}, file="x"
    ).splitlines()
    assert after[after.index("      inline_detokenizer: true") + 1] == "    # What we promise:"


def test_missing_sections_are_made() -> None:
    """On one line, while it fits."""
    overlay = {"serving": {"config": {"engine": {"max_batch_size": 8}}}}
    assert changed(overlay) == ([], ["      config: {engine: {max_batch_size: 8}}"])


def test_a_long_entry_takes_several_lines() -> None:
    """A line of more than 100 characters would be refused by linters."""
    overlay = {"serving": {"config": {"engine": {"parameters": {"a": "b" * 60, "c": "d" * 60}}}}}
    removed, added = changed(overlay)
    assert removed == []
    assert added[:3] == ["      config:", "        engine:", "          parameters:"]


def test_nothing_to_change() -> None:
    """Equal settings leave every byte."""
    assert edit_yaml(FILE, SECTION, {"serving": {"queue": {"max_queue_size": 8}}}, file="x") == FILE


@pytest.mark.parametrize("empty", ["serving:", "serving: null", "serving: {}", "serving: ~  # c"])
def test_an_empty_section(empty: str) -> None:
    """It is filled where it stands."""
    text = f"models:\n  speller:\n    {empty}\n    slo: {{}}\n"
    after = edit_yaml(text, SECTION, {"serving": {"inline_detokenizer": True}}, file="x")
    assert yaml.safe_load(after)["models"]["speller"]["serving"] == {"inline_detokenizer": True}
    assert after.count("\n") == text.count("\n")


def test_the_file_may_end_without_a_newline_and_with_crlf() -> None:
    """Line ends stay what they are."""
    text = "models:\r\n  speller:\r\n    slo: {}\r\n"
    after = edit_yaml(text, SECTION, {"serving": {"inline_detokenizer": True}}, file="x")
    assert after == text[:-2] + "\r\n    serving: {inline_detokenizer: true}\r\n"
    bare = "models:\n  speller:\n    slo: {}"
    assert edit_yaml(bare, SECTION, {"a": 1}, file="x") == bare + "\n    a: 1\n"


@pytest.mark.parametrize(
    "text",
    [
        "x: &s {queue: {max_queue_size: 8}}\nmodels:\n  speller: {serving: *s}\n  other: *s\n",
        "x: &s {serving: {queue: {}}}\nmodels:\n  speller:\n    <<: *s\n",
    ],
    ids=["shared by an anchor", "merged in"],
)
def test_what_would_change_more_is_refused(text: str) -> None:
    """With the lines to write by hand."""
    with pytest.raises(ConfigurationError, match="cannot be edited") as caught:
        edit_yaml(text, SECTION, {"serving": {"queue": {"max_queue_size": 2}}}, file="x")
    assert "max_queue_size: 2" in caught.value.remedy


KEYS = st.sampled_from(["serving", "queue", "config", "engine", "a: b", "größe", "#"])
SCALARS = st.none() | st.booleans() | st.integers() | st.sampled_from(["x", "1", "", "a: b", "{"])
MAPPINGS = st.recursive(
    st.dictionaries(KEYS, SCALARS, max_size=3),
    lambda inner: st.dictionaries(KEYS, inner | SCALARS, max_size=3),
    max_leaves=6,
)


@given(before=MAPPINGS, overlay=MAPPINGS, flow=st.sampled_from([None, True, False]))
def test_it_says_what_was_meant_or_refuses(
    before: dict[str, Any], overlay: dict[str, Any], flow: bool | None
) -> None:
    """Whatever stands there and whatever is merged in."""
    data = {"models": {"speller": before, "other": {"slo": 1}}}
    text = yaml.safe_dump(data, default_flow_style=flow, allow_unicode=True)
    try:
        after = edit_yaml(text, SECTION, overlay, file="x")
    except ConfigurationError:
        return
    wanted = deep_merge(data, {"models": {"speller": overlay}})
    assert yaml.safe_load(after) == wanted


def test_the_file_is_replaced_through_a_link(tmp_path: Path) -> None:
    """The link stays one, permissions and line ends too."""
    real, link = tmp_path / "real.yaml", tmp_path / "tritonctl.yaml"
    real.write_bytes(b"a: 1\r\n")
    real.chmod(0o640)
    link.symlink_to(real)
    write_exactly(link, read_exactly(link).replace("1", "2"))
    assert link.is_symlink()
    assert real.read_bytes() == b"a: 2\r\n"
    assert real.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("profile", [None, "small", "new"])
def test_a_project_file_and_its_profiles(tmp_path: Path, profile: str | None) -> None:
    """Under a profile the settings go there, and nowhere else."""
    file = tmp_path / "tritonctl.yaml"
    text = FILE + "profiles:\n  small: # on a laptop\n    server: {http_port: 0}\n  new: {}\n"
    file.write_text(text, encoding="utf-8")
    overlay = {"serving": {"inline_detokenizer": True, "queue": {"max_queue_size": 2}}}
    edit = create_project_edit(load_project(file), None, "speller", profile, overlay)
    assert file.read_text(encoding="utf-8") == text
    write_exactly(edit.file, edit.new_text)
    tuned, base = load_project(file, profile=profile), load_project(file)
    assert tuned.models["speller"].serving.queue.max_queue_size == 2
    assert tuned.models["speller"].serving.queue.priority_levels == 2
    assert tuned.models["speller"].serving.inline_detokenizer
    assert base.models["speller"].serving.inline_detokenizer is (profile is None)
    assert edit.difference.startswith("--- a/tritonctl.yaml\n+++ b/tritonctl.yaml\n@@")
