# SPDX-License-Identifier: Apache-2.0
"""Reads and checks the options of this builder. Standard library only."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from buildlib.builder_toml import require_limits_of_one, require_precision
from buildlib.problems import BuildError
from buildlib.request import check_keys
from buildlib.request_types import BuilderRequest

_FOLDER = Path(__file__).parent
GROUP_SIZES = (-1, 32, 64, 128, 256)
DEFAULT_GROUP_SIZE = 64
DEFAULT_RATIO = 1.0


@dataclass(frozen=True)
class OpenvinoOptions:
    """Options of this builder, both for int4."""

    group_size: int = DEFAULT_GROUP_SIZE
    ratio: float = DEFAULT_RATIO


def read_options(request: BuilderRequest) -> OpenvinoOptions:
    """Read the request's options.

    Raises:
        BuildError: this builder does not support the request.
    """
    if request.kv_cache_dtype is not None:
        raise BuildError(
            f"kv_cache_dtype {request.kv_cache_dtype!r} cannot be chosen for this engine",
            remedy="Remove kv_cache_dtype: the precision decides the type of the KV cache.",
        )
    require_precision(request, _FOLDER)
    require_limits_of_one(request.limits, _FOLDER)
    return _parse_options(request.options, request.precision)


def _parse_options(raw: dict[str, Any], precision: str) -> OpenvinoOptions:
    check_keys(raw, tuple(OpenvinoOptions.__dataclass_fields__), "engine.options")
    if raw and precision != "int4":
        names = ", ".join(raw)
        raise BuildError(
            f"engine.options sets {names}, which only int4 has; the precision is {precision}",
            remedy=f"Remove {names} from engine.options, or set engine.precision to int4.",
        )
    group_size = raw.get("group_size", DEFAULT_GROUP_SIZE)
    if isinstance(group_size, bool) or group_size not in GROUP_SIZES:
        raise BuildError(
            f"engine.options.group_size is {group_size!r}",
            remedy=f"Use one of {', '.join(map(str, GROUP_SIZES))} weights (-1: a whole row).",
        )
    ratio = raw.get("ratio", DEFAULT_RATIO)
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio <= 1:
        raise BuildError(
            f"engine.options.ratio is {ratio!r}",
            remedy="Use the share of layers stored in int4, above 0 and up to 1; the rest is int8.",
        )
    return OpenvinoOptions(group_size=int(group_size), ratio=float(ratio))
