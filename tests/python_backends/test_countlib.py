# SPDX-License-Identifier: Apache-2.0
"""Counts are those of the tokenizer step; long prompts are bounded; JSON lines in and out."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from countlib.counters import COUNTED_MULTIPLE, TokenCounter, open_counter
from tasklib.task_file import FILE, SCHEMA, TextSettings
from textlib.errors import ModelConfigurationError
from textlib.triton.parameters import ModelParameters
from textlib.triton.prompts import RequestEncoder

LIBRARY = Path(__file__).parents[2] / "python_backends"
LONGEST = 16
CHAT = json.dumps([{"role": "user", "content": "the quick brown fox"}])


@pytest.fixture(scope="module")
def step(byte_level: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The version folder of a tokenizer step whose checkpoint has a chat template."""
    folder = tmp_path_factory.mktemp("step") / "1"
    (folder / "tokenizer").mkdir(parents=True)
    shutil.copy(byte_level, folder / "tokenizer" / "tokenizer.json")
    template = "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}"
    (folder / "tokenizer" / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder


@pytest.fixture
def counter(step: Path) -> Iterator[TokenCounter]:
    """Of that step."""
    made = open_counter(step, LONGEST, "true")
    yield made
    made.close()


@pytest.mark.parametrize("tensors", [{"text_input": ["a fox, 七千"]}, {"messages": [CHAT]}])
def test_counts_are_the_step_s(step: Path, counter: TokenCounter, tensors: dict[str, Any]) -> None:
    """As many ids as the step makes of the same tensors."""
    values = {"max_input_len": "512", "add_special_tokens": "true"}
    served = RequestEncoder(step / "tokenizer", ModelParameters("m", values))
    arrays = {
        name: np.array([text.encode() for text in texts], dtype=object)
        for name, texts in tensors.items()
    }
    [[row]] = served.encode([arrays])
    served.close()
    assert not isinstance(row, Exception)
    assert counter.count([tensors]) == [{"tokens": [len(row)]}]


def test_a_prompt_that_is_too_long_is_counted_all_the_same(counter: TokenCounter) -> None:
    """So that its refusal says how long it is, up to a bound; each request by itself."""
    longer, far_longer = "fox " * LONGEST, "fox " * LONGEST * COUNTED_MULTIPLE
    answers = counter.count([{"text_input": [text]} for text in (longer, far_longer, "fox")])
    assert answers[0]["tokens"][0] > LONGEST
    assert answers[1] == {"more_than": LONGEST * COUNTED_MULTIPLE}
    assert answers[2]["tokens"][0] < LONGEST


def test_what_the_step_refuses_is_refused_in_its_words(counter: TokenCounter) -> None:
    """Among them a role that is no text, and no prompt at all."""
    empty, chat, none = counter.count([{"text_input": [""]}, {"messages": ["[{}]"]}, {}])
    assert "text_input is empty" in empty["error"]
    assert "messages[0].role" in chat["error"]
    assert "text_input is missing" in none["error"]


def test_items_of_a_task_are_counted_as_the_model_reads_them(
    byte_level: Path, tmp_path: Path
) -> None:
    """Cut where the model stops to read, unless the request says that they must not be."""
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "task").mkdir()
    shutil.copy(byte_level, tmp_path / "tokenizer" / "tokenizer.json")
    text = asdict(TextSettings(LONGEST, 0, ("input_ids", "attention_mask")))
    record = {"schema": SCHEMA, "task": "embedding", "text": text}
    record["embedding"] = {"dimension": 3, "normalized": True}
    (tmp_path / "task" / FILE).write_text(json.dumps(record), encoding="utf-8")
    counter = open_counter(tmp_path, 1, "true")
    long = "fox " * LONGEST
    both, refused = counter.count(
        [{"text_input": ["fox", long]}, {"text_input": [long], "truncate": [False]}]
    )
    assert both["tokens"][0] < LONGEST
    assert both["tokens"][1] == LONGEST
    assert "max_seq_len" in refused["error"]


def test_a_folder_without_tokenizer_is_said(tmp_path: Path) -> None:
    """By name."""
    with pytest.raises(ModelConfigurationError, match="has no tokenizer"):
        open_counter(tmp_path, LONGEST, "true")


def test_the_process_answers_each_line_and_ends_with_its_input(step: Path) -> None:
    """Short requests and long ones, in any order."""
    long = "fox " * 20_000
    asked = [
        {"id": 1, "tensors": {"text_input": [long]}},
        {"id": 2, "tensors": {"text_input": ["fox"]}},
        {"id": 3, "tensors": {"messages": [CHAT]}},
    ]
    done = subprocess.run(
        [sys.executable, "-m", "countlib", step, "--max-input-len", "100000"],
        input="".join(json.dumps(line) + "\n" for line in asked),
        env=os.environ | {"PYTHONPATH": str(LIBRARY)},
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    first, *answers = map(json.loads, done.stdout.splitlines())
    assert first == {"ready": True}
    assert sorted(answer["id"] for answer in answers) == [1, 2, 3]
    by_id = {answer["id"]: answer["tokens"][0] for answer in answers}
    assert by_id[1] > 20_000 > by_id[3] > by_id[2] > 0
