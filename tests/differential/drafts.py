# SPDX-License-Identifier: Apache-2.0
"""Random model repositories in the making: what they are made of, and how they become files."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import text_format
from hypothesis import strategies as st

from tritonctl.checks.config.schema import model_config_schema
from tritonctl.checks.examples.files import ExampleFile

# What the names of a repository's own models begin with; a number takes its place on the server.
OWN = "case_"
MAIN = f"{OWN}m"
NUMERIC = ("TYPE_FP32", "TYPE_INT32", "TYPE_INT64", "TYPE_UINT8", "TYPE_BOOL", "TYPE_FP16")
DTYPES = (*NUMERIC, "TYPE_STRING")
PYTHON = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse(output_tensors=[]) for _ in requests]
"""
DECOUPLED = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            request.get_response_sender().send(flags=flags)
"""

Draw = Any  # hypothesis' DrawFn


@dataclass(frozen=True)
class Case:
    """A repository, the model of it to load, and the names of what was done to it."""

    touches: tuple[str, ...]
    files: Mapping[str, str | ExampleFile]
    model: str = MAIN

    def numbered(self, number: int) -> Case:
        """The same with names that no other has."""
        own = f"case{number}_"
        return Case(
            self.touches,
            {name.replace(OWN, own): _renamed(file, own) for name, file in self.files.items()},
            self.model.replace(OWN, own),
        )


def _renamed(file: str | ExampleFile, own: str) -> str | ExampleFile:
    if isinstance(file, str):
        return file.replace(OWN, own)
    return ExampleFile(file.content.replace(OWN.encode(), own.encode()), file.mode, file.link)


@dataclass
class Draft:
    """A model whose configuration is still a message. `files`: by path below its folder."""

    config: Any
    files: dict[str, str | ExampleFile] = field(default_factory=lambda: {"1/model.py": PYTHON})
    touches: list[str] = field(default_factory=list)


# Does something to a draft that a server may take or refuse.
Touch = Callable[[Draw, Draft], None]


def pick(draw: Draw, *values: Any) -> Any:
    """One of them."""
    return draw(st.sampled_from(values))


def dims(draw: Draw) -> list[int]:
    """What stands in real configurations."""
    return list(pick(draw, (1,), (4,), (-1,), (2, 3), (-1, 4), (3, 8, 8)))


def tensor(name: str, dtype: str, shape: list[int]) -> dict[str, Any]:
    """An entry of `input` or `output`."""
    return {"name": name, "data_type": dtype, "dims": shape}


def plain(draw: Draw, name: str = MAIN) -> Draft:
    """A model of the Python backend with which nothing is wrong."""
    schema = model_config_schema()
    config = schema.ModelConfig(name=name, backend="python")
    config.max_batch_size = pick(draw, 0, 1, 4, 8)
    for number in range(draw(st.integers(1, 3))):
        config.input.add(**tensor(f"IN{number}", pick(draw, *DTYPES), dims(draw)))
    for number in range(draw(st.integers(1, 2))):
        config.output.add(**tensor(f"OUT{number}", pick(draw, *DTYPES), dims(draw)))
    return Draft(config)


def printed(draw: Draw, config: Any) -> str:
    """The message as a text, in one of the ways in which people write it."""
    line, short = draw(st.booleans()), draw(st.booleans())
    text = text_format.MessageToString(
        config, as_one_line=line, use_short_repeated_primitives=short, as_utf8=True
    )
    return str(text) + ("\n" if line else "")


def names_in(files: Mapping[str, str | ExampleFile], pattern: str) -> set[str]:
    """Every word of that form in the texts."""
    texts = [
        file if isinstance(file, str) else file.content.decode("latin-1") for file in files.values()
    ]
    return {word for text in texts for word in re.findall(pattern, text)}
