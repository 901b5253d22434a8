# SPDX-License-Identifier: Apache-2.0
"""instructor: typed answers by tools, and by JSON in the text."""

from __future__ import annotations

import instructor
import openai
from client_features import Facts, Features, main, same
from pydantic import BaseModel


class Person(BaseModel):
    """The scripted answer of seed 1."""

    name: str
    age: int


class spell(BaseModel):  # noqa: N801 - the name of the tool that the scripted answer calls
    """Spells a number."""

    number: int


def ask(facts: Facts, mode: instructor.Mode, kind: type[BaseModel], seed: int) -> BaseModel:
    plain = openai.OpenAI(base_url=facts.url, api_key="none", max_retries=0)
    answer: BaseModel = instructor.from_openai(plain, mode=mode).chat.completions.create(
        model=facts.tools,
        messages=[{"role": "user", "content": facts.message}],
        response_model=kind,
        seed=seed,
        max_retries=0,
    )
    return answer


def tools(facts: Facts) -> None:
    same(ask(facts, instructor.Mode.TOOLS, spell, 0).model_dump(), {"number": 7342})


def json_in_text(facts: Facts) -> None:
    same(ask(facts, instructor.Mode.MD_JSON, Person, 1).model_dump(), facts.person)


FEATURES: Features = {"typed answers by a tool": tools, "typed answers in the text": json_in_text}

if __name__ == "__main__":
    main(FEATURES)
