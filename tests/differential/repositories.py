# SPDX-License-Identifier: Apache-2.0
"""Random model repositories, valid and broken, as hypothesis draws them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.differential.drafts import (
    MAIN,
    OWN,
    Case,
    Draft,
    Draw,
    Touch,
    names_in,
    pick,
    plain,
    printed,
)
from tests.differential.ensembles import ENSEMBLE_TOUCHES, ensemble
from tests.differential.model_touches import TOUCHES
from tests.differential.pool import pool_files
from tests.differential.text_touches import TEXT_TOUCHES, TextTouch
from tritonctl.checks.config.schema import model_config_schema
from tritonctl.checks.examples.files import ExampleFile

# How many things are done to one repository: mostly one, so that what it shows is plain.
HOW_MANY = (0, 0, 0, 0, 0, 1, 1, 2)


@dataclass(frozen=True)
class Kind:
    """What a case begins as, and what is done to it first; several more things may be."""

    start: Literal["model", "ensemble", "own", "circle"]
    touch: Touch | None = None
    text_touch: TextTouch | None = None


KINDS = (
    *(Kind("model", touch) for touch in TOUCHES),
    *(Kind("ensemble", touch) for touch in ENSEMBLE_TOUCHES),
    *(Kind("model", text_touch=touch) for touch in TEXT_TOUCHES),
    *(Kind("ensemble", text_touch=touch) for touch in TEXT_TOUCHES),
    *(Kind("model"), Kind("ensemble"), Kind("own"), Kind("own"), Kind("own"), Kind("circle")),
)


@st.composite
def cases(draw: Draw, kind: Kind | None = None) -> Case:
    """A model of the Python backend, an ensemble of models that are there, or of its own."""
    kind = kind or pick(draw, *KINDS)
    if kind.start == "model":
        drafts = [_touched(draw, plain(draw), kind.touch, TOUCHES)]
    elif kind.start == "ensemble":
        drafts = [_touched(draw, ensemble(draw), kind.touch, ENSEMBLE_TOUCHES)]
    else:
        drafts = _of_its_own(draw, circle=kind.start == "circle")
    return _case(draw, drafts, kind.text_touch)


def _touched(draw: Draw, draft: Draft, first: Touch | None, others: Sequence[Touch]) -> Draft:
    more = pick(draw, *HOW_MANY) if first else 0
    for touch in [first, *(pick(draw, *others) for _ in range(more))]:
        if touch is not None:
            touch(draw, draft)
            draft.touches.append(touch.__name__)
    return draft


def _of_its_own(draw: Draw, *, circle: bool) -> list[Draft]:
    """An ensemble over one model that something was done to, or over itself by way of another."""
    inner = plain(draw, f"{OWN}a")
    main = _around(inner.config, MAIN)
    main.touches.append("circle" if circle else "around-own")
    if circle:
        return [main, _around(main.config, f"{OWN}a")]
    touches = tuple(touch for touch in TOUCHES if touch.__name__ != "name")
    return [main, _touched(draw, inner, pick(draw, *touches), touches)]


def _around(config: Any, name: str) -> Draft:
    """An ensemble with one step, whose tensors are those of the model."""
    made = model_config_schema().ModelConfig(name=name, platform="ensemble")
    made.max_batch_size = config.max_batch_size
    made.input.extend(config.input)
    made.output.extend(config.output)
    step = made.ensemble_scheduling.step.add(model_name=config.name, model_version=-1)
    for one in config.input:
        step.input_map[one.name] = one.name
    for one in config.output:
        step.output_map[one.name] = one.name
    return Draft(made, {"1/keep": ""})


def _case(draw: Draw, drafts: list[Draft], text_touch: TextTouch | None) -> Case:
    """The drafts' files; something may be done to the text of the first one's configuration."""
    touches = [name for draft in drafts for name in draft.touches]
    files: dict[str, str | ExampleFile] = {}
    for draft, name in zip(drafts, (MAIN, f"{OWN}a"), strict=False):
        text: str | bytes | None = printed(draw, draft.config)
        if text_touch is not None and draft is drafts[0]:
            text = text_touch(draw, str(text))
            touches.append(f"text:{text_touch.__name__}")
        if text is not None:
            content = text if isinstance(text, str) else ExampleFile(text)
            files[f"{name}/config.pbtxt"] = content
        files |= {f"{name}/{path}": file for path, file in draft.files.items()}
    return Case(tuple(touches or ["nothing"]), {**files, **_used(files)})


def _used(files: Mapping[str, str | ExampleFile]) -> Mapping[str, str | ExampleFile]:
    return pool_files(names_in(files, r"pool_\w+"))


def sample(count: int, number: int) -> list[Case]:
    """So many different repositories, as many of each kind; the same ones for the same number."""
    chance = random.Random(number)  # noqa: S311
    each = count // len(KINDS) + 2
    found: dict[str, Case] = {}
    for index, kind in enumerate(KINDS):
        drawn = _drawn(kind, each * 2 + 8, number * len(KINDS) + index)
        found |= dict(chance.sample(sorted(drawn.items()), min(each, len(drawn))))
    chosen = sorted(found.items())
    chance.shuffle(chosen)
    return [case for _, case in chosen[:count]]


def _drawn(kind: Kind, count: int, number: int) -> dict[str, Case]:
    found: dict[str, Case] = {}

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(kind))
    def collect(case: Case) -> None:
        found.setdefault(repr(sorted(case.files.items())), case)

    collect()
    return found
