# SPDX-License-Identifier: Apache-2.0
"""GPUs and runtimes that a precision works with: builders/compatibility.toml, as the host reads it.

Standard library only.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from buildlib.problems import BuildError

_FILE = Path(__file__).resolve().parents[2] / "compatibility.toml"


@dataclass(frozen=True)
class Format:
    """A precision, or a type of the KV cache.

    `quant_algo`: its name in config.json and hf_quant_config.json; None: not quantised. `listed`:
    compute capabilities that run it; `compiled`: those that a compiled engine can be for.
    """

    quant_algo: str | None
    worlds: tuple[str, ...]
    listed: tuple[str, ...]
    compiled: tuple[str, ...]
    reason: str
    nearest: tuple[str, ...]


def precisions() -> dict[str, Format]:
    """Return TensorRT-LLM's precisions by name. Raises BuildError."""
    return _formats("precisions")


def kv_cache_dtypes() -> dict[str, Format]:
    """Return TensorRT-LLM's types of the KV cache by name. Raises BuildError."""
    return _formats("kv_cache_dtypes")


def quant_algo(precision: str, unknown: str | None = None) -> str | None:
    """Return what config.json calls a precision; `unknown` for one that the table lacks."""
    known = precisions().get(precision)
    return known.quant_algo if known else unknown


def oldest_for_trtllm() -> str:
    """Return the first compute capability that TensorRT-LLM supports."""
    return next(
        str(one["compute_capability"]) for one in _table()["architectures"] if one["trtllm"]
    )


def oldest_for_tensorrt() -> str:
    """Return the first compute capability that TensorRT supports."""
    known = _table()["architectures"]
    return next(str(one["compute_capability"]) for one in known if one.get("tensorrt", True))


@cache
def _formats(section: str) -> dict[str, Format]:
    return {name: _format(entry) for name, entry in _table()[section].items()}


def _format(entry: dict[str, Any]) -> Format:
    runs = (*entry["listed"], *entry.get("unlisted", ()))
    refused = runs if "engine" not in entry["worlds"] else entry.get("not_compiled", ())
    return Format(
        quant_algo=entry["quant_algo"] or None,
        worlds=tuple(entry["worlds"]),
        listed=tuple(entry["listed"]),
        compiled=tuple(capability for capability in runs if capability not in refused),
        reason=entry["reason"],
        nearest=tuple(entry.get("nearest", ())),
    )


@cache
def _table() -> dict[str, Any]:
    # Images up to 24.11 have Python 3.10, without it; a rule refuses them before it is needed.
    import tomllib

    try:
        return tomllib.loads(_FILE.read_text(encoding="utf-8"))
    except OSError as error:
        raise BuildError(
            f"{_FILE}: cannot be read: {error.strerror}",
            remedy="Copy compatibility.toml from tritonctl's builders/ there.",
        ) from error
