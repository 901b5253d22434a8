# SPDX-License-Identifier: Apache-2.0
"""However large a repository is: no crash, and time that grows as the repository does."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import tritonctl
from tests.check_models.models import CONFIG, MODEL
from tests.examples import examples
from tests.unit.checks.repositories import put
from tests.unit.checks.sizes import GROWING, LARGEST, LONG, chain, ensemble, python
from tritonctl.checks.checker import check_repository
from tritonctl.checks.config.message import is_map
from tritonctl.checks.config.schema import model_config_schema
from tritonctl.checks.findings import CheckReport
from tritonctl.checks.report.formats import FORMATS
from tritonctl.checks.repository import CheckTarget

# A server of which everything is known, so that every rule has something to say.
TARGET = CheckTarget(
    "2.60.0",
    cores=2,
    shared_memory_bytes=64 << 20,
    gpus=(24 << 30,),
    memory_bytes=8 << 30,
    slo_ms={"m": 50.0},
    named_by_user=True,
)
_PACKAGE = str(Path(tritonctl.__file__).parent)
_LONGEST_MESSAGE = 500


def check(folder: Path, files: dict[str, Any]) -> CheckReport:
    """What all rules find, and every format can say."""
    shutil.rmtree(folder, ignore_errors=True)
    report = check_repository(put(folder, files), TARGET)
    for finding in report.findings:
        assert 0 < len(finding.message) <= _LONGEST_MESSAGE
        assert 1 <= finding.column <= max(finding.end, 1)
    for form in FORMATS.values():
        form(report)
    return report


def lines_run(folder: Path) -> int:
    """How many lines of the package a check runs, each time in a loop: a clock nothing disturbs."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        check_repository(folder, TARGET)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("name", GROWING)
def test_work_grows_as_the_repository(name: str, tmp_path: Path) -> None:
    """Four times as much of anything is at most a little over four times the work."""
    few, many = (put(tmp_path / str(n), GROWING[name](n)) for n in (25, 100))
    check(tmp_path / "r", dict(GROWING[name](100)))  # and what is read only once has been
    assert lines_run(many) < 5 * lines_run(few)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", GROWING)
def test_ten_thousand(name: str, tmp_path: Path) -> None:
    """Far more than anybody has, in a time that somebody waits."""
    files = dict(GROWING[name](10_000))
    started = time.process_time()
    check(tmp_path / "r", files)
    assert time.process_time() - started < 120


@pytest.mark.parametrize("name", LONG)
def test_long_texts(name: str, tmp_path: Path) -> None:
    """Each takes minutes where it is gone over again and again."""
    started = time.process_time()
    check(tmp_path / "r", dict(python(LONG[name](200_000))))
    assert time.process_time() - started < 30


def test_dimensions_that_no_number_holds(tmp_path: Path) -> None:
    """Bytes beyond every type of number are reported as very many."""
    dims = ", ".join([str(LARGEST)] * 17)
    report = check(
        tmp_path / "r", {"m/config.pbtxt": CONFIG.replace("4", dims), "m/1/model.py": MODEL}
    )
    assert "TC821" in {finding.rule for finding in report.findings}


def test_an_ensemble_of_thousands_of_itself(tmp_path: Path) -> None:
    """Told as what it is."""
    report = check(tmp_path / "r", dict(ensemble(chain("m", 2_000))))
    assert "TC307" in {finding.rule for finding in report.findings}


_EXTREMES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), -1, 0, 1, 2, 2**31 - 1, 2**31),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), -1, 0, 1, 2, LARGEST, 2**63),
    FieldDescriptor.CPPTYPE_UINT32: (-1, 0, 1, 2, 2**32 - 1, 2**32),
    FieldDescriptor.CPPTYPE_UINT64: (-1, 0, 1, 2, 2**64 - 1, 2**64),
    FieldDescriptor.CPPTYPE_FLOAT: (-1, 0, 0.5, "inf", "-inf", "nan", "1e400", 10**400),
    FieldDescriptor.CPPTYPE_DOUBLE: (-1, 0, 0.5, "inf", "-inf", "nan", "1e400", 10**400),
    FieldDescriptor.CPPTYPE_BOOL: ("true", "false", 2),
}
_WORDS = ("", "A", "B", "m", "1", "python", "ensemble", "onnxruntime", "tensorrtllm", "é", "${x}")
_TIMES = (1, 1, 1, 2, 3, 40)


def message(data: st.DataObject, descriptor: Any, depth: int = 0) -> str:
    """A text with fields that the message has, and the least and greatest values."""
    every = list(descriptor.fields)
    most = min(len(every), 6 if depth else 10)
    fields = data.draw(st.lists(st.sampled_from(every), max_size=most)) if every else []
    lines = []
    for one in fields:
        times = data.draw(st.sampled_from(_TIMES)) if one.is_repeated and depth < 3 else 1
        lines += [f"{one.name}: {value(data, one, depth)}"] * times
    return "\n".join(lines)


def value(data: st.DataObject, field: Any, depth: int) -> str:
    """One value of a field."""
    if field.message_type is not None:
        inner = message(data, field.message_type, depth + 1)
        if is_map(field):
            names = field.message_type.fields_by_name
            inner = "\n".join(f"{n}: {value(data, names[n], depth + 1)}" for n in ("key", "value"))
        return f"{{ {inner} }}"
    if field.enum_type is not None:
        known = [one.name for one in field.enum_type.values]
        return str(data.draw(st.sampled_from([*known, 99, -1, 2**31 - 1])))
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return f'"{data.draw(st.sampled_from((*_WORDS, "x" * 5_000)))}"'
    return str(data.draw(st.sampled_from(_EXTREMES[field.cpp_type])))


@given(data=st.data())
@examples(400, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large)
def test_any_configuration(data: st.DataObject, tmp_path: Path) -> None:
    """Of any fields, with the least and the greatest values: findings, never an exception."""
    schema = model_config_schema().ModelConfig.DESCRIPTOR
    texts = [message(data, schema) for _ in range(2)]
    files = {"m/config.pbtxt": texts[0], "m/1/model.py": MODEL, "m/1/model.onnx": ""}
    check(tmp_path / "r", files | {"A/config.pbtxt": texts[1], "A/1/model.py": MODEL})
