# SPDX-License-Identifier: Apache-2.0
"""instructor: typed answers by tools, and by JSON in the text."""

from __future__ import annotations

from typing import Literal

import instructor
import openai
from client_features import Facts, Features, check, main, same
from pydantic import BaseModel


class Person(BaseModel):
    """The scripted answer of seed 1."""

    name: str
    age: int


class Guided(BaseModel):
    """Of few values, so that an answer ends."""

    name: Literal["Ada", "Grace"]
    age: Literal[36, 85]


def ask(
    facts: Facts, mode: instructor.Mode, kind: type[BaseModel], seed: int, name: str = ""
) -> BaseModel:
    plain = openai.OpenAI(base_url=facts.url, api_key="none", max_retries=0)
    answer: BaseModel = instructor.from_openai(plain, mode=mode).chat.completions.create(
        model=name or facts.tools,
        messages=[{"role": "user", "content": facts.message}],
        response_model=kind,
        seed=seed,
        max_retries=0,
    )
    return answer


def tools(facts: Facts) -> None:
    """instructor names the tool in `tool_choice`: the call is then forced by guided decoding."""
    said = ask(facts, instructor.Mode.TOOLS, Guided, 0, facts.speller)
    check(isinstance(said, Guided), f"the answer is {said}")


def json_in_text(facts: Facts) -> None:
    same(ask(facts, instructor.Mode.MD_JSON, Person, 1).model_dump(), facts.person)


def json_schema(facts: Facts) -> None:
    """By guided decoding."""
    said = ask(facts, instructor.Mode.JSON_SCHEMA, Guided, 1, facts.speller)
    check(isinstance(said, Guided), f"the answer is {said}")


FEATURES: Features = {
    "typed answers by a tool": tools,
    "typed answers in the text": json_in_text,
    "JSON by a schema": json_schema,
}

if __name__ == "__main__":
    main(FEATURES)
