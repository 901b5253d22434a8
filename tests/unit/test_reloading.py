# SPDX-License-Identifier: Apache-2.0
"""The parts of a reload that need no server: names, wiring, what is asked, what is under way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tritonctl.protocol.metrics import Metrics
from tritonctl.repository.pbtxt import parse_pbtxt
from tritonctl.repository.plan import plan_repository
from tritonctl.repository.standby import renamed, rewired, steps_of
from tritonctl.server.reload import under_way
from tritonctl.smoke.inputs import valid_inputs
from tritonctl.smoke.single_request import first_prompt

if TYPE_CHECKING:
    from tests.unit.conftest import Sandbox

STEPS = ["speller_tokenizer", "speller_engine", "speller_detokenizer"]


def test_copies_are_wired_to_each_other(built: Sandbox) -> None:
    """Every name carries the tag; inputs, outputs and maps are as before."""
    planned = plan_repository(built.load()).models
    copies = {copy.name: parse_pbtxt(copy.config) for copy in renamed(planned, "ab12")}
    assert sorted(copies) == sorted(f"{model.name}__ab12" for model in planned)
    ensemble = copies["speller__ab12"]
    assert steps_of(ensemble) == [f"{step}__ab12" for step in STEPS]
    before = next(parse_pbtxt(m.config) for m in planned if m.name == "speller")
    assert ensemble["input"] == before["input"]
    maps = [step["input_map"] for step in before["ensemble_scheduling"]["step"]]
    assert [step["input_map"] for step in ensemble["ensemble_scheduling"]["step"]] == maps


def test_the_ensemble_keeps_its_name_when_it_is_rewired(built: Sandbox) -> None:
    """Clients know it by that; the original is not changed."""
    planned = plan_repository(built.load()).models
    before = next(parse_pbtxt(m.config) for m in planned if m.name == "speller")
    after = rewired(before, "ab12")
    assert after["name"] == "speller"
    assert steps_of(after) == [f"{step}__ab12" for step in STEPS]
    assert steps_of(before) == STEPS
    assert steps_of({"name": "plain"}) == []


def test_what_is_under_way_is_counted_per_model() -> None:
    """Streams and waiting requests of the named models, nobody else's."""
    metrics = Metrics.parse(
        'tritonctl_active_streams{model="a_engine"} 2\n'
        'tritonctl_waiting_streams{model="a_engine"} 1\n'
        'tritonctl_active_streams{model="b_engine"} 9\n'
        'nv_inference_pending_request_count{model="a_tokenizer"} 4\n'
    )
    assert under_way(metrics, ["a_engine", "a_tokenizer"]) == 7
    assert under_way(metrics, []) == 0


def test_the_smallest_valid_input() -> None:
    """Open dimensions are 1, a batch of 1 where there are batches, optional tensors left out."""
    config = {
        "max_batch_size": 8,
        "input": [
            {"name": "ids", "data_type": "TYPE_INT64", "dims": ["-1", "3"]},
            {"name": "text", "data_type": "TYPE_STRING", "dims": ["1"]},
            {"name": "more", "data_type": "TYPE_FP32", "dims": ["1"], "optional": True},
        ],
    }
    inputs = valid_inputs(config)
    assert sorted(inputs) == ["ids", "text"]
    assert inputs["ids"].shape == (1, 1, 3)
    assert inputs["ids"].dtype == np.int64
    assert inputs["text"].tolist() == [[b"1"]]
    assert valid_inputs({"input": config["input"]})["ids"].shape == (1, 3)


def test_the_first_prompt_of_the_evaluation(built: Sandbox) -> None:
    """Relative to the project; some text where there is none or it cannot be read."""
    built.data["models"]["speller"]["evaluation"] = {"prompts": "prompts.jsonl"}
    project = built.load()
    assert first_prompt(project.models["speller"], project.root) == "1"
    (built.root / "prompts.jsonl").write_text('{"text_input": "7 in Thai:"}\n', encoding="utf-8")
    assert first_prompt(project.models["speller"], project.root) == "7 in Thai:"
