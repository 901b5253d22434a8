# SPDX-License-Identifier: Apache-2.0
"""Runs text_generation.yaml against a text-generation ensemble; the file says how and what.

Every case is sent while good requests run, so that a bad one that spoils the batch it sits in
shows: the answers of the good ones must be the usual ones.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import Any

import pytest

from tests.conformance.cases import CASES, SENTINELS, SUITE, assigned, missing_needs
from tests.conformance.conftest import ENGINES
from tests.conformance.wire import Answer, Target, Tensor, ask
from tritonctl.protocol.datatypes import BY_CONFIG_NAME
from tritonctl.repository.ensembles import ensemble_for

pytestmark = [pytest.mark.server, pytest.mark.engine]

GOOD = "greedy"
BESIDE = 3
ANSWER_KEYS = {
    *("text", "contains", "finish_reason", "num_output_tokens", "num_input_tokens", "equals"),
    *("same_text", "differs", "begins", "before", "through", "after_prompt", "most_tokens"),
    *("least_tokens", "responses", "log_probs", "lacks"),
}


def datatypes() -> dict[str, str]:
    """The declared type of each public input, in the words of the protocol."""
    ensemble, _ = ensemble_for(SUITE["task"])
    return {tensor.name: BY_CONFIG_NAME[tensor.data_type].wire for tensor in ensemble.inputs}


DATATYPES = datatypes()


# --- requests -------------------------------------------------------------------------------------


def piece(target: Target, where: Mapping[str, Any]) -> str:
    """A piece of the text of another case's answer."""
    found = answer_of(target, where["of"]).text[where["from"] : where["to"]]
    assert len(found) == where["to"] - where["from"], f"{where['of']} is too short for {where}"
    return found


def inputs_of(target: Target, case: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a case."""
    values = SUITE["defaults"] | (case.get("inputs") or {})
    return {name: tensor(target, name, v) for name, v in values.items() if v is not None}


def tensor(target: Target, name: str, value: Any) -> Tensor:
    """A scalar, a list, or a mapping as the file describes it."""
    if isinstance(value, Mapping) and "values" in value:
        values = list(value["values"]) * value.get("repeat", 1)
        datatype = value.get("datatype") or DATATYPES[name]
        return Tensor.of(datatype, values, value.get("shape"))
    items = value if isinstance(value, list) else [value]
    elements = [element for item in items for element in elements_of(target, item)]
    return Tensor.of(DATATYPES[name], elements)


def elements_of(target: Target, item: Any) -> list[Any]:
    """What one item of a value stands for."""
    if not isinstance(item, Mapping):
        return [item]
    if "hex" in item:
        return [bytes.fromhex(str(item["hex"]))]
    if "of" in item:
        return [piece(target, item)]
    if item.get("list"):
        return [item["repeat"]] * item["times"]
    return [item["repeat"] * item["times"]]


# --- answers --------------------------------------------------------------------------------------


def answer_of(target: Target, name: str) -> Answer:
    """What a good case is answered with; asked once."""
    if name not in target.answers:
        case = CASES[name]
        if missing := missing_needs(case, target.has):
            pytest.skip(f"{name} needs {missing}")
        answer = asyncio.run(ask(target, inputs_of(target, case)))
        assert not answer.broken + answer.message, f"{name}: {answer.broken}{answer.message}"
        target.answers[name] = answer
    return target.answers[name]


async def beside_good_ones(target: Target, inputs: Mapping[str, Tensor]) -> list[Answer]:
    """The answer of a request, first, and those of the good ones around it."""
    good = inputs_of(target, CASES[GOOD])
    return await asyncio.gather(ask(target, inputs), *(ask(target, good) for _ in range(BESIDE)))


def check_refusal(answer: Answer, expected: Mapping[str, Any]) -> None:
    """One error, no text, and a message that says what is wrong with which tensor."""
    assert answer.message, f"answered: {answer.text!r}"
    assert expected["says"] in answer.message
    assert answer.chunks == []


def check_answer(target: Target, answer: Answer, expected: Mapping[str, Any]) -> None:
    """Complete and in order, and every property that the case names."""
    assert not answer.message
    assert (answer.finals, answer.after_final) == (1, 0)
    assert [c.finish_reason for c in answer.chunks[:-1]] == [""] * (len(answer.chunks) - 1)
    assert answer.chunks[-1].finish_reason in {"stop", "length"}
    counts = [chunk.num_output_tokens for chunk in answer.chunks]
    assert counts == sorted(counts)
    check_values(answer, expected)
    check_relations(target, answer, expected)


def check_values(answer: Answer, expected: Mapping[str, Any]) -> None:
    """What the case says about this answer alone."""
    last = answer.chunks[-1]
    for key in ("finish_reason", "num_output_tokens", "num_input_tokens"):
        assert getattr(last, key) == expected.get(key, getattr(last, key)), key
    assert answer.text == expected.get("text", answer.text)
    assert expected.get("contains", "") in answer.text
    assert [word for word in expected.get("lacks", ()) if word in answer.text] == []
    assert last.num_output_tokens >= expected.get("least_tokens", 0)
    assert last.num_output_tokens <= expected.get("most_tokens", math.inf)
    assert len(answer.chunks) == expected.get("responses", len(answer.chunks))
    if expected.get("log_probs") is False:
        assert (answer.log_probs, last.cum_log_prob) == ([], None)
    if expected.get("log_probs"):
        assert len(answer.log_probs) == last.num_output_tokens
        assert all(value <= 1e-4 for value in answer.log_probs)
        assert last.cum_log_prob is not None
        assert math.isclose(last.cum_log_prob, sum(answer.log_probs), abs_tol=1e-3)


def check_relations(target: Target, answer: Answer, expected: Mapping[str, Any]) -> None:
    """What the case says about this answer and others."""
    for key, name in expected.items():
        if key == "equals":
            assert answer.essence == answer_of(target, name).essence
        elif key == "same_text":
            assert answer.text == answer_of(target, name).text
        elif key == "differs":
            assert answer.text != answer_of(target, name).text
        elif key == "begins":
            assert answer_of(target, name).text.startswith(answer.text)
        elif key == "after_prompt":
            other = answer_of(target, name)
            assert answer.text == SUITE["defaults"]["text_input"] + other.text
            assert answer.essence[1:] == other.essence[1:]
        elif key in {"before", "through"}:
            word, whole = piece(target, name), answer_of(target, name["of"]).text
            end = whole.index(word) + (len(word) if key == "through" else 0)
            assert answer.text == whole[:end]


def test_case(target: Target, name: str) -> None:
    """As the file says."""
    case = CASES[name]
    if missing := missing_needs(case, target.has):
        pytest.skip(f"needs {missing}")
    usual = answer_of(target, GOOD)
    answer, *others = asyncio.run(beside_good_ones(target, inputs_of(target, case)))
    assert [one.broken for one in (answer, *others)] == [""] * (1 + BESIDE)
    assert [other.message for other in others] == [""] * BESIDE
    assert [other.essence for other in others] == [usual.essence] * BESIDE
    if "error" in case:
        check_refusal(answer, case["error"])
    else:
        check_answer(target, answer, case["answer"])


def test_the_file_is_well_formed() -> None:
    """Names are unique, keys are known, references lead to good cases."""
    assert len(CASES) == len(SUITE["cases"])
    for name, case in CASES.items():
        assert case.keys() <= {"name", "inputs", "needs", "answer", "error"}, name
        assert ("answer" in case) != ("error" in case), name
        answer = case.get("answer", {})
        assert answer.keys() <= ANSWER_KEYS, name
        for key in ("equals", "same_text", "differs", "begins", "after_prompt"):
            assert "answer" in CASES[answer.get(key, GOOD)], name


def test_no_case_is_left_out() -> None:
    """Each goes to some engine; each engine answers what it can, and refuses the sentinels."""
    pairs = set(assigned(ENGINES))
    assert {name for _, name in pairs} == CASES.keys()
    assert all("error" in CASES[name] for name in SENTINELS)
    for engine, has in ENGINES.items():
        answered = {n for n, c in CASES.items() if "answer" in c and not missing_needs(c, has)}
        assert {(engine, name) for name in answered | SENTINELS} <= pairs
