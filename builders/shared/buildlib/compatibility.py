# SPDX-License-Identifier: Apache-2.0
"""Reads builders/compatibility.toml: the GPUs and runtimes of each precision.

The host reads the same file. Standard library only.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from buildlib.problems import BuildError

_FILE = Path(__file__).resolve().parents[2] / "compatibility.toml"


@dataclass(frozen=True)
class FormatSupport:
    """A precision or a type of the KV cache."""

    quant_algo: str | None  # in config.json and hf_quant_config.json; None: not quantised
    worlds: tuple[str, ...]
    listed: tuple[str, ...]  # compute capabilities that run it
    compiled: tuple[str, ...]  # compute capabilities that engines can be compiled for
    reason: str
    nearest: tuple[str, ...]


def precisions() -> dict[str, FormatSupport]:
    """Return TensorRT-LLM's precisions by name. Raises BuildError."""
    return _formats("precisions")


def kv_cache_dtypes() -> dict[str, FormatSupport]:
    """Return TensorRT-LLM's KV cache types by name. Raises BuildError."""
    return _formats("kv_cache_dtypes")


def quant_algo(precision: str, default: str | None = None) -> str | None:
    """Return the precision's name in config.json, or `default` if the table lacks it."""
    number_format = precisions().get(precision)
    return number_format.quant_algo if number_format else default


def min_capability_trtllm() -> str:
    """Return the lowest compute capability that TensorRT-LLM supports."""
    return next(
        str(entry["compute_capability"]) for entry in _table()["architectures"] if entry["trtllm"]
    )


def min_capability_tensorrt() -> str:
    """Return the lowest compute capability that TensorRT supports."""
    architectures = _table()["architectures"]
    return next(
        str(entry["compute_capability"]) for entry in architectures if entry.get("tensorrt", True)
    )


@cache
def _formats(section: str) -> dict[str, FormatSupport]:
    return {name: _format(entry) for name, entry in _table()[section].items()}


def _format(entry: dict[str, Any]) -> FormatSupport:
    runs = (*entry["listed"], *entry.get("unlisted", ()))
    refused = runs if "engine" not in entry["worlds"] else entry.get("not_compiled", ())
    return FormatSupport(
        quant_algo=entry["quant_algo"] or None,
        worlds=tuple(entry["worlds"]),
        listed=tuple(entry["listed"]),
        compiled=tuple(capability for capability in runs if capability not in refused),
        reason=entry["reason"],
        nearest=tuple(entry.get("nearest", ())),
    )


@cache
def _table() -> dict[str, Any]:
    # Images up to 24.11 have Python 3.10 without tomllib. A rule refuses them before this import.
    import tomllib

    try:
        return tomllib.loads(_FILE.read_text(encoding="utf-8"))
    except OSError as error:
        raise BuildError(
            f"{_FILE}: cannot be read: {error.strerror}",
            remedy="Copy compatibility.toml from tritonctl's builders/ there.",
        ) from error
