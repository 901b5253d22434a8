# SPDX-License-Identifier: Apache-2.0
"""The build request: read, checked by request.schema.json, typed. Standard library only.

The host makes that file of its own models; builders/README.md describes the request. What depends
on the builder (its precisions, its options, the limits it supports) is checked by the builder.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from buildlib.problems import BuildError, nearest, read_json_object

_FILE = Path(__file__).with_name("request.schema.json")
_DEFINITIONS: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))["$defs"]
SCHEMA = _DEFINITIONS["BuildRequest"]["properties"]["schema"]["const"]
_UPDATE = "Use a tritonctl and a builder of the same release."
# Where tritonctl.yaml has what is elsewhere in the request.
_PLACES = {
    "limits": "engine",
    "calibration": "engine.calibration",
    "options": "engine.options",
    "target": "engine.target",
}
_PATHS = ("checkpoint", "source", "prompts", "data")
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
}

World = Literal["engine", "pytorch"]


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
    """Which prompts to compare on, how far, and how many must be equal (a fraction of 1).

    Of tasks: the recall or accuracy to reach (a fraction of 1), and within how many texts.
    """

    prompts: Path
    max_tokens: int
    max_prompts: int | None = None
    min_exact_match: float | None = None
    min_score: float | None = None
    recall_at: int | None = None


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
    world: World
    triton: str | None = None
    tensorrt_llm: str | None = None
    tensorrt: str | None = None
    cuda: str | None = None
    image: str | None = None
    gpu: str | None = None
    compute_capability: str | None = None


@dataclass(frozen=True)
class Request:
    """One checked build request; `options` as they came, `task` None where tensors say it all."""

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
    task: str | None = None


def read_request(path: Path) -> Request:
    """Return the checked request in the JSON file `path`.

    Raises:
        BuildError: a key is missing, unknown or malformed.
    """
    raw = read_json_object(path, remedy="Run the build through tritonctl, which writes this file.")
    if raw.get("schema") != SCHEMA:
        schema = raw.get("schema")
        raise BuildError(f"{path}: schema is {schema!r}, expected {SCHEMA!r}", remedy=_UPDATE)
    del raw["schema"]
    request: Request = _read_object(raw, "BuildRequest", "the build request")
    return request


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
        if raw.get(key) is None:
            raise BuildError(f"{what} lacks the key {key!r}", remedy=_UPDATE)


def known_precision(request: Request, builder: str, precisions: Sequence[str]) -> None:
    """Raise BuildError if the builder does not have the request's precision."""
    value = request.precision
    if value not in precisions:
        raise BuildError(
            f"the {builder} builder has no precision {value!r}{nearest(value, precisions)}",
            remedy=f"Set engine.precision to one of: {', '.join(precisions)}.",
        )


def _read_object(raw: Any, name: str, place: str) -> Any:
    """Return an object of the request as its class; null is the same as leaving a key out."""
    properties = _DEFINITIONS[name]["properties"]
    known_keys(raw, tuple(properties), place, required=_DEFINITIONS[name].get("required", ()))
    top = name == "BuildRequest"
    values = {
        key: _read_value(value, properties[key], _PLACES.get(key, key) if top else f"{place}.{key}")
        for key, value in raw.items()
        if value is not None
    }
    paths = {key: Path(value) for key, value in values.items() if key in _PATHS}
    return _CLASSES[name](**values | paths)


def _read_value(value: Any, schema: dict[str, Any], place: str) -> Any:
    if "$ref" in schema:
        return _read_object(value, schema["$ref"].rpartition("/")[2], place)
    kind, known = schema["type"], schema.get("enum")
    fits = isinstance(value, _TYPES[kind]) and isinstance(value, bool) == (kind == "boolean")
    if fits and "minimum" in schema:
        fits = schema["minimum"] <= value <= schema.get("maximum", value)
    if not fits or (known and value not in known):
        words = _expected(schema)
        raise BuildError(
            f"{place} is {value!r}, expected {words}",
            remedy=f"Set {place} to {words}, or leave it out.",
        )
    return value


def _expected(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return f"one of {', '.join(schema['enum'])}"
    if schema["type"] == "integer":
        return f"a whole number of at least {schema['minimum']}"
    if schema["type"] == "number":
        return f"a fraction from {schema['minimum']} to {schema['maximum']}"
    return {"string": "text", "boolean": "true or false", "object": "a JSON object"}[schema["type"]]


_CLASSES: dict[str, type] = {
    "BuildRequest": Request,
    "Calibration": Calibration,
    "EvaluationRequest": EvaluationRequest,
    "Limits": Limits,
    "Target": Target,
}
