# SPDX-License-Identifier: Apache-2.0
"""The small files next to a model's code that configure its engine."""

from __future__ import annotations

import stat
from collections.abc import Iterator

from tritonctl.checks.memoize import memoized
from tritonctl.checks.places import Source
from tritonctl.checks.repository import Model

_NAMES = ("model.yaml", "model.json", "llm_args.json", ".env")
_LARGEST = 1 << 20


def small_files(model: Model) -> tuple[Source, ...]:
    """Those of the served version, as far as they are text: of NVIDIA's llmapi, vLLM, our own."""
    return memoized(model, "small_files", lambda: tuple(_small_files(model)))


def _small_files(model: Model) -> Iterator[Source]:
    version = model.served_version
    files = model.files_of(version) if version is not None else {}
    for name in _NAMES:
        status = files.get(name)
        if status and stat.S_ISREG(status.st_mode) and status.st_size <= _LARGEST:
            try:
                text = (model.path / str(version) / name).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError):
                continue
            yield Source(f"{model.shown}/{version}/{name}", text)
