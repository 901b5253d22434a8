# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a file's data: in plain words, whatever pydantic would say."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, ValidationInfo
from pydantic_core import PydanticKnownError, core_schema
from pydantic_core._pydantic_core import list_all_errors

from tests.commands import run_here
from tritonctl.project.expected import reason

PACKAGE = Path(__file__).parents[3] / "tritonctl"
# What pydantic's messages are made of: https://docs.pydantic.dev/latest/errors/validation_errors/
FOREIGN = re.compile(
    "Input|should|valid |Unable|unable|required|permitted|Value error|Assertion|pydantic|errors for"
)


class One(BaseModel):
    """A section."""

    model_config = ConfigDict(extra="forbid")
    count: int
    share: Annotated[float, Field(ge=0, le=1)] = 0
    kind: Literal["a", "b"] = "a"
    dims: Annotated[list[int], Field(min_length=1)] = [1]
    path: Path = Path()


@dataclass
class Plain:
    """A section without a model."""

    count: int


@pytest.mark.parametrize(
    ("kind", "data", "problem"),
    [
        (One, {"count": "many"}, "`count`: expected a whole number, got `many`"),
        (One, {"count": 1.5}, "`count`: expected a whole number, got `1.5`"),
        (One, {"count": None}, "`count`: expected a whole number, got `None`"),
        (One, {}, "`count` is missing"),
        (One, {"cuont": 1}, "unknown key `cuont` in the file"),
        (One, {"count": 1, "share": 1.5}, "`share`: expected at most 1, got `1.5`"),
        (One, {"count": 1, "kind": "c"}, "`kind`: expected 'a' or 'b', got `c`"),
        (One, {"count": 1, "dims": []}, "`dims`: expected at least 1 in the list, got `[]`"),
        (One, {"count": 1, "dims": [1, {}]}, "`dims.1`: expected a whole number"),
        (One, {"count": 1, "path": 3}, "`path`: expected a path, got `3`"),
        (One, [], "`the file`: expected a section of keys, got `[]`"),
        (dict[str, One], {"x": {"count": 1, "y": 2}}, "unknown key `y` in `x`"),
        (Plain, {"count": 1.5}, "`count`: expected a whole number, got `1.5`"),
        (Plain, 3, "`the file`: expected a section of keys, got `3`"),
    ],
)
def test_usual_mistakes(kind: Any, data: Any, problem: str) -> None:
    """The place, what is expected there, what stands there."""
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_python(data)
    assert reason(caught.value) == problem


def test_of_json() -> None:
    """Its syntax, and a place in it without the names of a union's members."""
    with pytest.raises(ValidationError) as caught:
        One.model_validate_json("{")
    assert reason(caught.value).startswith("not JSON: ")
    data = {"one": {"count": "many"}}
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(dict[str, One | list[int]]).validate_python(data)
    assert reason(caught.value, data) == "`one.count`: expected a whole number, got `many`"


def test_of_an_encoding() -> None:
    """The byte, and where it is."""
    with pytest.raises(UnicodeDecodeError) as caught:
        b"ab\xff".decode()
    assert reason(caught.value) == "not UTF-8: byte 2 is 0xff"


@pytest.mark.parametrize("error", list_all_errors(), ids=lambda error: str(error["type"]))
def test_no_word_of_pydantic(error: dict[str, Any]) -> None:
    """Every mistake that it knows, also those that no schema of ours can make today."""
    context = dict(error["example_context"] or {})
    if error["type"] in ("value_error", "assertion_error"):
        context = {"error": "our own words"}

    def refuse(value: Any, _: ValidationInfo) -> Any:
        raise PydanticKnownError(error["type"], context or None)

    schema = core_schema.with_info_plain_validator_function(refuse)
    kind: Any = Annotated[Any, _Schema(schema)]
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(dict[str, kind]).validate_python({"key": "given"})
    assert not FOREIGN.search(reason(caught.value)), reason(caught.value)


@dataclass(frozen=True)
class _Schema:
    schema: Any

    def __get_pydantic_core_schema__(self, *_: Any) -> Any:
        return self.schema


def test_every_place_uses_them() -> None:
    """Who catches a ValidationError, or reads a file by a schema, has it explained."""
    readers = [
        file
        for file in PACKAGE.rglob("*.py")
        if re.search(
            r"\.(model_validate(_json)?|validate_(json|python))\(", file.read_text("utf-8")
        )
    ]
    assert len(readers) > 8
    for file in readers:
        names = {
            alias.name
            for node in ast.walk(ast.parse(file.read_text("utf-8")))
            if isinstance(node, ast.ImportFrom) and node.module == "tritonctl.project.expected"
            for alias in node.names
        }
        assert names & {"reason", "explain_error", "expectation"} or file.name == "schema.py", file
    for file in PACKAGE.rglob("*.py"):
        text = file.read_text("utf-8")
        assert ".errors()" not in text or file.name == "expected.py", file


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("loadtest", "run", "--duration", "5s"), "expected a number, got `5s`"),
        (("logs", "-n", "many"), "expected a whole number, got `many`"),
        (("logs", "-n", "-1"), "expected at least 0, got `-1`"),
    ],
)
def test_of_an_option(arguments: tuple[str, ...], problem: str, tmp_path: Path) -> None:
    """Typer reads options by pydantic, too; exit code 2."""
    done = run_here(*arguments, "--json", cwd=tmp_path)
    assert done.returncode == 2
    assert problem in json.loads(done.stdout)["problem"]
    assert not FOREIGN.search(json.loads(done.stdout)["problem"].partition(": ")[2])
    assert problem in " ".join(done.stderr.replace("│", "").split())
