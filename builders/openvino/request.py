# SPDX-License-Identifier: Apache-2.0
"""The build request: read, checked, typed. Standard library only.

The contract is `tritonctl.build/1`, described in builders/README.md.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from precisions import PRECISIONS
from problems import BuildError, nearest, read_json_object

SCHEMA = "tritonctl.build/1"

GROUP_SIZES = (-1, 32, 64, 128, 256)
DEFAULT_GROUP_SIZE = 64
DEFAULT_RATIO = 1.0

_UPDATE = "Use a tritonctl and a builder of the same release."


@dataclass(frozen=True)
class Limits:
    """Limits as asked for; None is to be resolved against the checkpoint. Lengths are tokens."""

    max_batch_size: int
    max_input_len: int | None = None
    max_seq_len: int | None = None
    max_num_tokens: int | None = None
    max_beam_width: int = 1
    tp_size: int = 1
    pp_size: int = 1


@dataclass(frozen=True)
class Options:
    """Options of this builder, both for int4."""

    group_size: int = DEFAULT_GROUP_SIZE
    ratio: float = DEFAULT_RATIO


@dataclass(frozen=True)
class EvaluationRequest:
    """Which prompts to compare on, how far, and how many must be equal (a fraction of 1)."""

    prompts: Path
    max_tokens: int
    max_prompts: int | None = None
    min_exact_match: float | None = None


@dataclass(frozen=True)
class Request:
    """One checked build request."""

    model: str
    checkpoint: Path
    precision: str
    limits: Limits
    trust_remote_code: bool = False
    options: Options = field(default_factory=Options)
    evaluation: EvaluationRequest | None = None


def read_request(path: Path) -> Request:
    """Return the checked request in the JSON file `path`.

    Raises:
        BuildError: a key is missing, unknown or malformed, or asks for what this builder cannot.
    """
    raw = read_json_object(path, remedy="Run the build through tritonctl, which writes this file.")
    if raw.get("schema") != SCHEMA:
        found = raw.get("schema")
        raise BuildError(f"{path}: schema is {found!r}, expected {SCHEMA!r}", remedy=_UPDATE)
    fields = ("schema", "model", "checkpoint", "precision", "limits")
    optional = ("kv_cache_dtype", "trust_remote_code", "options", "evaluation")
    _known_keys(raw, (*fields, *optional), "the build request", required=fields)
    if raw.get("kv_cache_dtype") is not None:
        raise BuildError(
            f"kv_cache_dtype {raw['kv_cache_dtype']!r} cannot be chosen for this engine",
            remedy="Remove kv_cache_dtype: the precision decides the type of the KV cache.",
        )
    precision = _precision(raw["precision"])
    return Request(
        model=str(raw["model"]),
        checkpoint=Path(str(raw["checkpoint"])),
        precision=precision,
        limits=_limits(raw["limits"]),
        trust_remote_code=bool(raw.get("trust_remote_code", False)),
        options=_options(raw.get("options") or {}, precision),
        evaluation=_evaluation(raw.get("evaluation")),
    )


def _known_keys(
    raw: Any, known: tuple[str, ...], what: str, *, required: tuple[str, ...] = ()
) -> None:
    if not isinstance(raw, dict):
        problem = f"{what} must be a JSON object, found {raw!r}"
        raise BuildError(problem, remedy=_UPDATE)
    for key in raw:
        if key not in known:
            raise BuildError(
                f"{what} has the unknown key {key!r}{nearest(key, known)}",
                remedy=f"Use only: {', '.join(known)}.",
            )
    for key in required:
        if key not in raw:
            raise BuildError(f"{what} lacks the key {key!r}", remedy=_UPDATE)


def _precision(value: Any) -> str:
    if value not in PRECISIONS:
        raise BuildError(
            f"the openvino builder has no precision {value!r}{nearest(str(value), PRECISIONS)}",
            remedy=f"Set engine.precision to one of: {', '.join(PRECISIONS)}.",
        )
    return str(value)


def _whole(raw: dict[str, Any], key: str, *, what: str) -> int | None:
    """Return a positive whole number, or None for null and absent."""
    value = raw.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BuildError(
            f"{what}.{key} is {value!r}, expected a whole number of at least 1",
            remedy=f"Set {what}.{key} to a whole number of at least 1, or leave it out.",
        )
    return value


def _limits(raw: Any) -> Limits:
    what = "engine"
    _known_keys(raw, tuple(Limits.__dataclass_fields__), "limits", required=("max_batch_size",))
    _single(raw, "tp_size", "one engine runs on one machine's CPU")
    _single(raw, "pp_size", "one engine runs on one machine's CPU")
    _single(raw, "max_beam_width", "requests that join and leave each step decode one beam")
    return Limits(
        max_batch_size=_whole(raw, "max_batch_size", what=what) or 1,
        max_input_len=_whole(raw, "max_input_len", what=what),
        max_seq_len=_whole(raw, "max_seq_len", what=what),
        max_num_tokens=_whole(raw, "max_num_tokens", what=what),
    )


def _single(raw: dict[str, Any], key: str, reason: str) -> None:
    if _whole(raw, key, what="engine") not in (None, 1):
        raise BuildError(
            f"engine.{key} is {raw[key]}, and the openvino builder supports 1 only: {reason}",
            remedy=f"Set engine.{key} to 1, or use the tensorrt_llm builder on GPUs.",
        )


def _options(raw: Any, precision: str) -> Options:
    _known_keys(raw, tuple(Options.__dataclass_fields__), "engine.options")
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
    return Options(group_size=int(group_size), ratio=float(ratio))


def _evaluation(raw: Any) -> EvaluationRequest | None:
    if raw is None:
        return None
    known = tuple(EvaluationRequest.__dataclass_fields__)
    _known_keys(raw, known, "evaluation", required=("prompts", "max_tokens"))
    least = raw.get("min_exact_match")
    if least is not None and (isinstance(least, bool) or not _is_fraction(least)):
        raise BuildError(
            f"evaluation.min_exact_match is {least!r}",
            remedy="Use a fraction from 0 to 1: 0.98 asks for 98 of 100 prompts.",
        )
    return EvaluationRequest(
        prompts=Path(str(raw["prompts"])),
        max_tokens=_whole(raw, "max_tokens", what="evaluation") or 1,
        max_prompts=_whole(raw, "max_prompts", what="evaluation"),
        min_exact_match=None if least is None else float(least),
    )


def _is_fraction(value: Any) -> bool:
    return isinstance(value, int | float) and 0 <= value <= 1
