# SPDX-License-Identifier: Apache-2.0
"""Short forms of a request of tensors: a text, a row of texts by name, an image's file.

For models of tritonctl's tasks (docs/reference/tensors.md), which take BYTES[n, 1].
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from loadlib.schema import refused

TEXT, IMAGE = "text_input", "image"
_LABEL = "label"  # the right answer, where an evaluation's lines are sent; no input has the name
# The served step takes a file in this form, too: the same request over gRPC and in JSON.
_DATA_URL = "data:image/*;base64,"


def text_row(text: str) -> dict[str, Any]:
    """A line of a .txt file: one text."""
    return {TEXT: _column([text])}


def rows(content: dict[str, Any], where: str, folder: Path) -> dict[str, Any]:
    """An object of texts by tensor, a list of them for several rows; images are files in `folder`.

    Refusal for other values, and for an image that cannot be read.
    """
    columns = {
        name: value if isinstance(value, list) else [value]
        for name, value in content.items()
        if name != _LABEL
    }
    for name, values in columns.items():
        if not values or not all(isinstance(value, str) for value in values):
            raise refused(
                f"{where}: {name}",
                f"{content[name]!r:.60} is neither a text nor a list of texts",
                'write {"text_input": "..."}, or {"inputs": {"X": {"shape": [1], "datatype": '
                '"FP32", "data": [0]}}}',
            )
    sizes = {name: len(values) for name, values in columns.items()}
    if len(set(sizes.values())) > 1:
        raise refused(where, f"different numbers of rows: {sizes}", "give one value for each row")
    if IMAGE in columns:
        columns[IMAGE] = [_image(folder / name, where) for name in columns[IMAGE]]
    return {name: _column(values) for name, values in columns.items()}


def _column(values: list[str]) -> dict[str, Any]:
    return {"shape": [len(values), 1], "datatype": "BYTES", "data": values}


def _image(file: Path, where: str) -> str:
    try:
        return _DATA_URL + base64.b64encode(file.read_bytes()).decode()
    except OSError as error:
        raise refused(
            f"{where}: {IMAGE}",
            f"cannot read {file}: {error.strerror}",
            "name a file, relative to the file of prompts",
        ) from error
