# SPDX-License-Identifier: Apache-2.0
"""Validate the sampling parameters of one request against `sampling.json`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from textlib.errors import RequestError
from textlib.triton.sampling_table import PARAMETERS, Number, RequestParameter

NO_END_TOKEN = -1


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the engine chooses the next token: a field for each parameter of `sampling.json`."""

    max_tokens: int  # maximum ids to generate
    end_ids: tuple[int, ...] = ()  # ids that end the stream; empty: no id ends it
    greedy: bool = True  # most probable token; only parameters with changes_greedy apply
    temperature: float = 1.0  # above 0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None  # None: draw one per request
    min_tokens: int = 0
    log_probs: bool = False  # report the log probability of each id


def resolve_sampling(
    values: Mapping[str, Number | None], *, max_tokens: int, end_ids: tuple[int, ...]
) -> SamplingParams:
    """Validate a client's tensors, keyed by public name; absent or None is the default.

    Raises RequestError with the tensor, its value and the limit.
    """
    for name, parameter in PARAMETERS.items():
        _check_range(name, values.get(name), parameter)
    _check_min_tokens(values.get("min_tokens"), max_tokens)
    numbers: dict[str, Any] = {
        name: _value_or_neutral(parameter, values.get(name))
        for name, parameter in PARAMETERS.items()
    }
    # In greedy requests the temperature may be 0, and older clients send top_p 0 for "off".
    numbers |= {name: numbers[name] or 1.0 for name in ("temperature", "top_p")}
    return SamplingParams(
        max_tokens=max_tokens,
        end_ids=end_ids,
        greedy=_is_greedy(values),
        log_probs=bool(values.get("return_log_probs")),
        **numbers | {"seed": _seed(values)},
    )


def _value_or_neutral(parameter: RequestParameter, value: Number | None) -> Number | None:
    return parameter.neutral if value is None else parameter.to_number(value)


def _check_range(name: str, value: Number | None, parameter: RequestParameter) -> None:
    if value is None or (math.isfinite(value) and parameter.allows(value)):
        return
    raise RequestError(f"{name} is {value:g}, expected {parameter.range_text()} ({parameter.doc}).")


def _check_min_tokens(value: Number | None, max_tokens: int) -> None:
    if value is not None and value > max_tokens:
        raise RequestError(f"min_tokens is {value}, expected from 0 to {max_tokens} (max_tokens).")


def _seed(values: Mapping[str, Number | None]) -> int | None:
    """Return the seed, which has two names: NVIDIA's ensemble renamed `random_seed` to `seed`."""
    explicit = {
        name: value
        for name in ("seed", *PARAMETERS["seed"].aliases)
        if (value := values.get(name)) is not None
    }
    if len(set(explicit.values())) > 1:
        listing = " and ".join(f"{name} is {value}" for name, value in explicit.items())
        raise RequestError(f"{listing}: two names of one value. Send one of them.")
    return next(map(int, explicit.values()), None)


def _is_greedy(values: Mapping[str, Number | None]) -> bool:
    # Older clients send top_p 0 for "off": TensorRT-LLM then uses top_k, or else is greedy.
    if values.get("top_p") == 0 and not values.get("top_k"):
        return True
    if any(
        parameter.greedy is not None and values.get(name) == parameter.greedy
        for name, parameter in PARAMETERS.items()
    ):
        return True
    return values.get("temperature") is None and all(
        values.get(name) in (None, parameter.neutral)
        for name, parameter in PARAMETERS.items()
        if parameter.starts_sampling
    )
