# SPDX-License-Identifier: Apache-2.0
"""Short forms of a tensor request: a text, a row of texts by name, an image file.

For models of tritonctl's tasks (docs/reference/tensors.md), which take BYTES[n, 1].
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from loadlib.schema import field_error

TEXT, IMAGE = "text_input", "image"
_LABEL = "label"  # the expected answer in evaluation files; no input has this name
# The image step accepts data URLs: the same request works over gRPC and in JSON.
_DATA_URL = "data:image/*;base64,"


def text_row(text: str) -> dict[str, Any]:
    """Return the inputs for one text, a line of a .txt file."""
    return {TEXT: _column([text])}


def text_rows(content: dict[str, Any], location: str, folder: Path) -> dict[str, Any]:
    """Convert texts by tensor name, or lists of texts for several rows, to inputs.

    Images are files in `folder`. Raises RunRefusedError for other values and unreadable images.
    """
    columns = {
        name: value if isinstance(value, list) else [value]
        for name, value in content.items()
        if name != _LABEL
    }
    for name, values in columns.items():
        if not values or not all(isinstance(value, str) for value in values):
            raise field_error(
                f"{location}: {name}",
                f"{content[name]!r:.60} is neither a text nor a list of texts",
                'write {"text_input": "..."}, or {"inputs": {"X": {"shape": [1], "datatype": '
                '"FP32", "data": [0]}}}',
            )
    sizes = {name: len(values) for name, values in columns.items()}
    if len(set(sizes.values())) > 1:
        raise field_error(
            location, f"different numbers of rows: {sizes}", "give one value for each row"
        )
    if IMAGE in columns:
        columns[IMAGE] = [_image(folder / name, location) for name in columns[IMAGE]]
    return {name: _column(values) for name, values in columns.items()}


def _column(values: list[str]) -> dict[str, Any]:
    return {"shape": [len(values), 1], "datatype": "BYTES", "data": values}


def _image(file: Path, location: str) -> str:
    try:
        return _DATA_URL + base64.b64encode(file.read_bytes()).decode()
    except OSError as error:
        raise field_error(
            f"{location}: {IMAGE}",
            f"cannot read {file}: {error.strerror}",
            "name a file, relative to the prompt file",
        ) from error
