# SPDX-License-Identifier: Apache-2.0
"""The build request: read, checked, typed. Standard library only.

The contract is `tritonctl.build/1`, described in builders/README.md. What depends on the builder
(its precisions, its options, the limits it supports) is checked by the builder itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from buildlib.problems import BuildError, nearest, read_json_object

SCHEMA = "tritonctl.build/1"

_UPDATE = "Use a tritonctl and a builder of the same release."
_REQUIRED = ("schema", "model", "checkpoint", "precision", "limits")
_OPTIONAL = (
    "kv_cache_dtype",
    "trust_remote_code",
    "allow_pickle",
    "options",
    "evaluation",
    "stage",
    "source",
    "target",
    "calibration",
)


@dataclass(frozen=True)
class Limits:
    """Limits as asked for; None is the builder's to decide. Lengths are tokens, sizes GPUs."""

    max_batch_size: int
    max_input_len: int | None = None
    max_seq_len: int | None = None
    max_num_tokens: int | None = None
    max_beam_width: int = 1
    tp_size: int = 1
    pp_size: int = 1


@dataclass(frozen=True)
class EvaluationRequest:
    """Which prompts to compare on, how far, and how many must be equal (a fraction of 1)."""

    prompts: Path
    max_tokens: int
    max_prompts: int | None = None
    min_exact_match: float | None = None


@dataclass(frozen=True)
class Calibration:
    """What the ranges of activations are measured on: a file or a folder; how much of it."""

    data: Path
    samples: int
    max_seq_len: int
    batch_size: int
    seed: int


@dataclass(frozen=True)
class Target:
    """What the engine shall run on; a row of builders/compatibility.toml and a GPU."""

    release: str
    world: str
    triton: str | None = None
    tensorrt_llm: str | None = None
    tensorrt: str | None = None
    cuda: str | None = None
    image: str | None = None
    gpu: str | None = None
    compute_capability: str | None = None


@dataclass(frozen=True)
class Request:
    """One checked build request; `options` as they came."""

    model: str
    checkpoint: Path
    precision: str
    limits: Limits
    kv_cache_dtype: str | None = None
    trust_remote_code: bool = False
    allow_pickle: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    evaluation: EvaluationRequest | None = None
    stage: str | None = None
    source: Path | None = None
    target: Target | None = None
    calibration: Calibration | None = None


def read_request(path: Path) -> Request:
    """Return the checked request in the JSON file `path`.

    Raises:
        BuildError: a key is missing, unknown or malformed.
    """
    raw = read_json_object(path, remedy="Run the build through tritonctl, which writes this file.")
    if raw.get("schema") != SCHEMA:
        found = raw.get("schema")
        raise BuildError(f"{path}: schema is {found!r}, expected {SCHEMA!r}", remedy=_UPDATE)
    known_keys(raw, (*_REQUIRED, *_OPTIONAL), "the build request", required=_REQUIRED)
    options = raw.get("options") or {}
    known_keys(options, tuple(options), "engine.options")
    return Request(
        model=str(raw["model"]),
        checkpoint=Path(str(raw["checkpoint"])),
        precision=str(raw["precision"]),
        limits=_limits(raw["limits"]),
        kv_cache_dtype=raw.get("kv_cache_dtype"),
        trust_remote_code=bool(raw.get("trust_remote_code", False)),
        allow_pickle=bool(raw.get("allow_pickle", False)),
        options=options,
        evaluation=_evaluation(raw.get("evaluation")),
        stage=raw.get("stage"),
        source=Path(raw["source"]) if raw.get("source") else None,
        target=_target(raw.get("target")),
        calibration=_calibration(raw.get("calibration")),
    )


def known_keys(raw: Any, known: Sequence[str], what: str, *, required: Sequence[str] = ()) -> None:
    """Refuse a `raw` that is no object, has other than the `known` keys or lacks one `required`."""
    if not isinstance(raw, dict):
        problem = f"{what} must be a JSON object, found {raw!r}"
        raise BuildError(problem, remedy=_UPDATE)
    for key in raw:
        if key not in known:
            raise BuildError(
                f"{what} has the unknown key {key!r}{nearest(key, known)}",
                remedy=f"Use only: {', '.join(known) or 'nothing'}.",
            )
    for key in required:
        if key not in raw:
            raise BuildError(f"{what} lacks the key {key!r}", remedy=_UPDATE)


def whole(raw: dict[str, Any], key: str, *, what: str) -> int | None:
    """Return a positive whole number, or None for null and absent. Raises BuildError."""
    value = raw.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BuildError(
            f"{what}.{key} is {value!r}, expected a whole number of at least 1",
            remedy=f"Set {what}.{key} to a whole number of at least 1, or leave it out.",
        )
    return value


def known_precision(request: Request, builder: str, precisions: Sequence[str]) -> None:
    """Raise BuildError if the builder does not have the request's precision."""
    value = request.precision
    if value not in precisions:
        raise BuildError(
            f"the {builder} builder has no precision {value!r}{nearest(value, precisions)}",
            remedy=f"Set engine.precision to one of: {', '.join(precisions)}.",
        )


def _limits(raw: Any) -> Limits:
    names = tuple(Limits.__dataclass_fields__)
    known_keys(raw, names, "limits", required=("max_batch_size",))
    sizes = {name: whole(raw, name, what="engine") for name in names}
    return Limits(**{name: size for name, size in sizes.items() if size is not None})


def _evaluation(raw: Any) -> EvaluationRequest | None:
    if raw is None:
        return None
    known = tuple(EvaluationRequest.__dataclass_fields__)
    known_keys(raw, known, "evaluation", required=("prompts", "max_tokens"))
    least = raw.get("min_exact_match")
    if least is not None and (isinstance(least, bool) or not _is_fraction(least)):
        raise BuildError(
            f"evaluation.min_exact_match is {least!r}",
            remedy="Use a fraction from 0 to 1: 0.98 asks for 98 of 100 prompts.",
        )
    return EvaluationRequest(
        prompts=Path(str(raw["prompts"])),
        max_tokens=whole(raw, "max_tokens", what="evaluation") or 1,
        max_prompts=whole(raw, "max_prompts", what="evaluation"),
        min_exact_match=None if least is None else float(least),
    )


def _is_fraction(value: Any) -> bool:
    return isinstance(value, int | float) and 0 <= value <= 1


def _target(raw: Any) -> Target | None:
    if raw is None:
        return None
    known_keys(raw, tuple(Target.__dataclass_fields__), "target", required=("release", "world"))
    return Target(**raw)


def _calibration(raw: Any) -> Calibration | None:
    if raw is None:
        return None
    names = tuple(Calibration.__dataclass_fields__)
    known_keys(raw, names, "calibration", required=names)
    sizes = {
        name: whole(raw, name, what="engine.calibration") or 1
        for name in ("samples", "max_seq_len", "batch_size")
    }
    return Calibration(data=Path(str(raw["data"])), seed=int(raw["seed"]), **sizes)
