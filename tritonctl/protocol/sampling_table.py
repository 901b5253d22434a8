# SPDX-License-Identifier: Apache-2.0
"""The table of sampling parameters, `python_backends/textlib/triton/sampling.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tritonctl.host import bundled

SAMPLING_FILE = "python_backends/textlib/triton/sampling.json"
_FLOAT = "TYPE_FP32"
_MAX_OF_INTEGERS = {"TYPE_INT32": 2**31 - 1, "TYPE_UINT64": 2**64 - 1}


@dataclass(frozen=True)
class SamplingParameter:
    """A parameter, with the fields that textlib/triton/sampling_table.py describes and two more.

    Raises TypeError for a table that lacks a field or has another one.
    """

    name: str  # of the public tensor
    data_type: str
    doc: str
    neutral: float | None = None
    minimum: float | None = None
    exclusive_minimum: float | None = None
    maximum: float | None = None
    engine_tensor: str = ""
    aliases: Sequence[str] = ()
    client_field: str = ""  # the alias that tritonctl's clients send
    greedy: float | None = None
    starts_sampling: bool = False
    changes_greedy: bool = False
    # minimum, maximum and doc of the OpenAI API's field, where they differ
    openai: Mapping[str, Any] = field(default_factory=dict)

    @property
    def python_type(self) -> type[float]:
        """The type of its values: int or float."""
        return float if self.data_type == _FLOAT else int

    @property
    def request_field(self) -> str:
        """The tensor that clients send, a field of `SamplingParameters`."""
        return self.client_field or self.name

    @property
    def range_text(self) -> str:
        """The range, such as `from 0 to 1`; empty for any value of the data type."""
        if self.exclusive_minimum is not None:
            return f"above {self.exclusive_minimum:g}"
        if self.minimum is None:
            return ""
        if self.maximum is None:
            return f"{self.minimum:g} or more"
        return f"from {self.minimum:g} to {self.maximum:g}"

    @property
    def tensor_doc(self) -> str:
        """The description with the range."""
        return "; ".join(filter(None, (self.doc, self.range_text)))

    def engine_tensors(self) -> dict[str, str]:
        """Return the public tensor of each of its tensors in an engine's model."""
        return {self.engine_tensor or self.name: self.name} | {name: name for name in self.aliases}

    def openai_bounds(self) -> dict[str, Any]:
        """Return the bounds of its field in the OpenAI API, as arguments of pydantic's Field."""
        bounds = {
            "ge": self.openai.get("minimum", self.minimum),
            "gt": self.exclusive_minimum,
            "le": self.openai.get("maximum", self.maximum) or _MAX_OF_INTEGERS.get(self.data_type),
        }
        return {key: bound for key, bound in bounds.items() if bound is not None}


@cache
def _read_table(file: Path) -> dict[str, SamplingParameter]:
    table = json.loads(file.read_text(encoding="utf-8"))
    return {name: SamplingParameter(name, **entry) for name, entry in table.items()}


def sampling_parameters(project_root: Path | None = None) -> Mapping[str, SamplingParameter]:
    """Return the parameters by public name, from a project's own textlib or the shipped one."""
    return _read_table(bundled.find(SAMPLING_FILE, project_root))
