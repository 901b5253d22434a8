# SPDX-License-Identifier: Apache-2.0
"""Read the small files next to a model's code that configure its engine."""

from __future__ import annotations

import stat
from collections.abc import Iterator

from tritonctl.checks.memoize import memoized
from tritonctl.checks.repository import Model
from tritonctl.checks.source_span import SourceText

_NAMES = ("model.yaml", "model.json", "llm_args.json", ".env")
MAX_SMALL_BYTES = 1 << 20


def small_files(model: Model) -> tuple[SourceText, ...]:
    """Return the readable text files of the served version: llmapi's, vLLM's and tritonctl's."""
    return memoized(model, "small_files", lambda: tuple(_small_files(model)))


def _small_files(model: Model) -> Iterator[SourceText]:
    version = model.served_version
    files = model.version_files(version) if version is not None else {}
    for name in _NAMES:
        status = files.get(name)
        if status and stat.S_ISREG(status.st_mode) and status.st_size <= MAX_SMALL_BYTES:
            try:
                text = (model.path / str(version) / name).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError):
                continue
            yield SourceText(f"{model.display_path}/{version}/{name}", text)
