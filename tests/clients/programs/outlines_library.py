# SPDX-License-Identifier: Apache-2.0
"""outlines with its OpenAI model: text, and JSON by `response_format`."""

from __future__ import annotations

from typing import Literal

import openai
import outlines
from client_features import NAMES, Facts, Features, check, main, same
from pydantic import BaseModel


class Person(BaseModel):
    """Two fields."""

    name: Literal["Ada", "Grace"]
    age: Literal[36, 85]


def model(facts: Facts, name: str) -> outlines.models.OpenAI:
    plain = openai.OpenAI(base_url=facts.url, api_key="none", max_retries=0)
    return outlines.from_openai(plain, name)


def text(facts: Facts) -> None:
    same(model(facts, facts.speller)(facts.message), facts.message_answer)
    same("".join(model(facts, facts.speller).stream(facts.message)), facts.message_answer)


def json_schema(facts: Facts) -> None:
    """By guided decoding."""
    text = model(facts, facts.speller)(facts.message, Person)
    said = Person.model_validate_json(text)
    check(said.name in NAMES, f"the answer is {said}")


FEATURES: Features = {"chat": text, "JSON by a schema": json_schema}

if __name__ == "__main__":
    main(FEATURES)
