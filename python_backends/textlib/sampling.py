# SPDX-License-Identifier: Apache-2.0
"""Sampling parameters of one request: public names, limits and defaults."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from textlib.errors import RequestError

Number = float | int
_MAX_PENALTY = 2.0
NO_END_TOKEN = -1


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen.

    greedy: take the most probable token; temperature, top_k, top_p and seed are then unused.
    temperature: > 0. top_k: 0 keeps all. top_p: 1.0 keeps all. seed: None draws one per request.
    repetition_penalty > 0, 1.0 is off; presence and frequency penalty -2 to 2, 0.0 is off.
    max_tokens: ids to generate at most. end_ids: ids that end the stream; empty ignores them all.
    min_tokens: ids to generate before one of them may come. log_probs: report that of each id.
    """

    max_tokens: int
    end_ids: tuple[int, ...] = ()
    greedy: bool = True
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    min_tokens: int = 0
    log_probs: bool = False


def resolve_sampling(
    values: Mapping[str, Number | None], *, max_tokens: int, end_ids: tuple[int, ...]
) -> SamplingParams:
    """Validate the tensors that a client sent, keyed by public name; absent or None = default.

    Raises RequestError naming the tensor, its value and the limit.
    """
    temperature = values.get("temperature")
    _check("temperature", temperature, "0 (greedy) or more", lambda value: value >= 0)
    top_k = values.get("top_k")
    _check("top_k", top_k, "0 (off) or more", lambda value: value >= 0)
    top_p = values.get("top_p")
    _check("top_p", top_p, "from 0 to 1 (both are off)", lambda value: 0 <= value <= 1)
    return SamplingParams(
        max_tokens=max_tokens,
        end_ids=end_ids,
        greedy=_is_greedy(temperature, top_k, top_p),
        temperature=float(temperature or 1.0),
        top_k=int(top_k or 0),
        top_p=float(top_p or 1.0),
        repetition_penalty=_repetition_penalty(values),
        presence_penalty=_penalty(values, "presence_penalty"),
        frequency_penalty=_penalty(values, "frequency_penalty"),
        seed=_seed(values),
        min_tokens=_min_tokens(values, max_tokens),
        log_probs=bool(values.get("return_log_probs")),
    )


def _min_tokens(values: Mapping[str, Number | None], max_tokens: int) -> int:
    value = values.get("min_tokens")
    limit = f"from 0 (off) to {max_tokens} (max_tokens)"
    _check("min_tokens", value, limit, lambda number: 0 <= number <= max_tokens)
    return int(value or 0)


def _seed(values: Mapping[str, Number | None]) -> int | None:
    """Two names of one value: NVIDIA's ensemble renamed the earlier `random_seed`."""
    given = {name: values[name] for name in ("seed", "random_seed") if values.get(name) is not None}
    if len(set(given.values())) > 1:
        shown = " and ".join(f"{name} is {value}" for name, value in given.items())
        raise RequestError(f"{shown}: two names of one value. Send one of them.")
    return next((int(value) for value in given.values() if value is not None), None)


def _is_greedy(temperature: Number | None, top_k: Number | None, top_p: Number | None) -> bool:
    # Older clients send top_p 0 for "off": TensorRT-LLM then goes by top_k, or else is greedy.
    if temperature == 0 or top_k == 1 or (top_p == 0 and not top_k):
        return True
    return not (temperature or top_k or (top_p is not None and top_p < 1))


def _repetition_penalty(values: Mapping[str, Number | None]) -> float:
    value = values.get("repetition_penalty")
    _check("repetition_penalty", value, "above 0 (1 is off)", lambda number: number > 0)
    return 1.0 if value is None else float(value)


def _penalty(values: Mapping[str, Number | None], name: str) -> float:
    value = values.get(name)
    limit = f"from -{_MAX_PENALTY:g} to {_MAX_PENALTY:g} (0 is off)"
    _check(name, value, limit, lambda number: abs(number) <= _MAX_PENALTY)
    return 0.0 if value is None else float(value)


def _check(name: str, value: Number | None, limit: str, is_valid: Callable[[Number], bool]) -> None:
    if value is None or (math.isfinite(value) and is_valid(value)):
        return
    raise RequestError(f"{name} is {value:g}, expected {limit}.")
