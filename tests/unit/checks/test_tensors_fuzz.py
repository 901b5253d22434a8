# SPDX-License-Identifier: Apache-2.0
"""Whatever stands in a configuration, a graph or a model.py: the rules come to an end."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.checks.repositories import put
from tests.unit.checks.test_openvino_ir import IR
from tritonctl.checks.checker import check_repository
from tritonctl.checks.examples.files import Example, ExampleFile
from tritonctl.checks.examples.onnx import onnx_file
from tritonctl.checks.repository import CheckTarget
from tritonctl.checks.rules import RULES

MINE = [rule for rule in RULES.values() if rule.id.startswith("TC2")]
WORD = re.compile(r"\w+|\s+|.", re.DOTALL)
SOURCES = [
    content if isinstance(content, str) else content.content.decode("latin-1")
    for rule in MINE
    for example in (rule.bad_example, rule.good_example)
    for name, content in example.items()
    if name.endswith((".py", ".pbtxt"))
]
WORDS = sorted({word for source in SOURCES for word in WORD.findall(source)})
fuzzed = examples(150, HealthCheck.function_scoped_fixture)


def edited(data: st.DataObject, text: str) -> str:
    """Words left out, doubled, or replaced by others."""
    words = WORD.findall(text)
    for _ in range(data.draw(st.integers(0, 6))):
        if words:
            place = data.draw(st.integers(0, len(words) - 1))
            words[place : place + data.draw(st.integers(0, 2))] = data.draw(
                st.lists(st.sampled_from(WORDS), max_size=2)
            )
    return "".join(words)


def check(folder: Path, files: Example) -> None:
    shutil.rmtree(folder / "repository", ignore_errors=True)
    repository = put(folder / "repository", files)
    for finding in check_repository(repository, CheckTarget("2.51.0"), rules=MINE).findings:
        assert finding.message
        assert finding.fix
        assert 1 <= finding.column <= max(finding.end, 1)


@given(data=st.data())
@fuzzed
def test_code(data: st.DataObject, tmp_path: Path) -> None:
    """Python that may or may not be valid, beside a configuration likewise."""
    python = [text for text in SOURCES if "class" in text]
    configs = [text for text in SOURCES if "python" in text and "class" not in text]
    files = {
        "m/config.pbtxt": edited(data, data.draw(st.sampled_from(configs))),
        "m/1/model.py": edited(data, data.draw(st.sampled_from(python))),
    }
    check(tmp_path, files)


@given(data=st.data())
@fuzzed
def test_graphs(data: st.DataObject, tmp_path: Path) -> None:
    """Graphs with other bytes, held against configurations with other words."""
    configs = [text for text in SOURCES if "onnxruntime" in text]
    content = bytearray(onnx_file(defaults=["x"], external={"w": 3}, sequences=["s"]))
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    text = edited(data, data.draw(st.sampled_from(configs)))
    check(tmp_path, {"m/config.pbtxt": text, "m/1/model.onnx": ExampleFile(bytes(content))})
    check(
        tmp_path,
        {
            "m/config.pbtxt": text.replace("onnxruntime", "openvino"),
            "m/1/model.xml": edited(data, IR),
        },
    )
