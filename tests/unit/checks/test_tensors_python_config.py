# SPDX-License-Identifier: Apache-2.0
"""What a model.py makes of its configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.check_models.models import CONFIG, MODEL
from tests.unit.checks.test_tensors import only, rules, underlined
from tests.unit.checks.test_tensors_python import AUTO, text_of

LOOKUP = 'pb_utils.get_output_config_by_name(config, "{}")'


def initialized(*lines: str) -> str:
    """The example with an initialize of these lines."""
    first = ("import json", "config = json.loads(args['x'])")
    body = "".join(f"        {line}\n" for line in (*first, *lines))
    return MODEL.replace(
        "    def execute", f"    def initialize(self, args):\n{body}\n    def execute"
    )


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([f"self.kind = {LOOKUP.format('OUTPUT')}['data_type']"], []),
        ([f"self.kind = {LOOKUP.format('SCORE')}['data_type']"], ["TC238"]),
        ([f"found = {LOOKUP.format('SCORE')}", "self.kind = found['data_type']"], ["TC238"]),
        ([f"found = {LOOKUP.format('SCORE')}", "self.kind = found and found['data_type']"], []),
        ([f"found = {LOOKUP.format('SCORE')}", "if found: self.kind = found['data_type']"], []),
        ([f"if old: self.kind = {LOOKUP.format('SCORE')}['data_type']"], []),
        ([f"self.found = {LOOKUP.format('SCORE')}"], []),
        ([f"self.kind = {LOOKUP.format('OUTPUT').replace('output', 'input')}['dims']"], ["TC238"]),
        (["self.kind = pb_utils.get_output_config_by_name(config, args['name'])['data_type']"], []),
    ],
)
def test_lookups(lines: list[str], expected: list[str], tmp_path: Path) -> None:
    """Of names that stand there, and whose result is surely used."""
    assert rules(tmp_path, text_of(initialized(*lines))) == expected


def test_a_renamed_output_is_one_mistake(tmp_path: Path) -> None:
    """It is looked up and made under the name that config.pbtxt had before."""
    config = CONFIG.replace('"OUTPUT"', '"SCORE"')
    text = initialized(f"self.kind = {LOOKUP.format('OUTPUT')}['data_type']")
    found = only(tmp_path, text_of(text, config))
    assert (found.rule, underlined(found)) == ("TC238", LOOKUP.format("OUTPUT"))
    assert "the output OUTPUT is not declared" in found.message
    assert found.message.endswith("declared: SCORE")


def test_names_that_the_code_adds(tmp_path: Path) -> None:
    """auto_complete_config may declare them."""
    text = initialized(f"self.kind = {LOOKUP.format('SCORE')}['data_type']")
    added = text.replace("    def execute", AUTO.format(body="config.add_output(config.score)"))
    assert rules(tmp_path, text_of(added)) == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('self.x = args["model_config"]["input"]', ["TC239"]),
        ('text = args["model_config"]; self.x = text["input"]', ["TC239"]),
        ('self.x = json.loads(args["model_config"])["input"]', []),
        ('self.x = args["model_config"][0]', []),
        ('self.x = args["parameters"]["input"]', []),
        ('config = args["model_config"]; self.x = config["input"]', []),  # given twice
    ],
)
def test_unparsed(line: str, expected: list[str], tmp_path: Path) -> None:
    """A text's items have numbers."""
    assert rules(tmp_path, text_of(initialized(line))) == expected


def test_bfloat16(tmp_path: Path) -> None:
    """As numpy, not by DLPack."""
    config = CONFIG.replace('"INPUT" data_type: TYPE_FP32', '"INPUT" data_type: TYPE_BF16')
    found = only(tmp_path / "numpy", text_of(MODEL, config))
    assert (found.rule, found.line) == ("TC237", 8)
    assert rules(tmp_path / "dlpack", text_of(MODEL.replace("as_numpy", "to_dlpack"), config)) == []
