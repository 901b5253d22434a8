# SPDX-License-Identifier: Apache-2.0
"""task.json: what is absent has its default, what is unknown or damaged is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from tasklib.task_file import EmbeddingInfo, TaskDefinition, TextSettings, read_task, text_settings
from textlib.errors import ModelConfigurationError

TEXT = {"max_seq_len": 256, "pad_id": 1, "inputs": ["input_ids", "attention_mask"]}


def written(folder: Path, **record: Any) -> Path:
    """A folder with that task.json."""
    whole = {"schema": "tritonctl.task/1", "task": "embedding", **record}
    (folder / "task.json").write_text(json.dumps(whole), encoding="utf-8")
    return folder


def test_typed_with_defaults(tmp_path: Path) -> None:
    """Nested records too."""
    embedding = {"dimension": 384, "normalized": True}
    task = read_task(written(tmp_path, text=TEXT, embedding=embedding))

    assert task.text == TextSettings(256, 1, ["input_ids", "attention_mask"])
    assert task.embedding == EmbeddingInfo(384, normalized=True)
    assert text_settings(task).include_prompt
    assert not task.labels


def test_a_task_without_text(tmp_path: Path) -> None:
    """An image's settings are handed on as they are; who wants text settings gets an error."""
    task = read_task(
        written(tmp_path, task="image_classification", image={"size": 8}, labels=["a"])
    )

    assert task == TaskDefinition("image_classification", image={"size": 8}, labels=["a"])
    with pytest.raises(ModelConfigurationError, match="image_classification reads no text"):
        text_settings(task)


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ({"schema": "tritonctl.task/2"}, "its schema is not tritonctl.task/1"),
        ({"text": {**TEXT, "stride": 4}}, "unknown key text.stride"),
        ({"text": {"pad_id": 0, "inputs": []}}, "max_seq_len"),
        ({"text": []}, "text is not an object"),
        ({"frobnicate": 1}, "unknown key frobnicate"),
        (
            {"text": {**TEXT, "default_prompt": "query"}},
            "text.prompts lacks text.default_prompt `query`",
        ),
        ({"text": {**TEXT, "truncation_side": "middle"}}, "truncation_side is `middle`"),
    ],
)
def test_what_is_unknown_is_refused(record: dict[str, Any], problem: str, tmp_path: Path) -> None:
    """With the file and what to do."""
    with pytest.raises(ModelConfigurationError, match=problem) as caught:
        read_task(written(tmp_path, **record))

    assert "task.json cannot be read" in str(caught.value)
    assert "tritonctl build --force" in str(caught.value)


def test_damaged_and_missing_files(tmp_path: Path) -> None:
    """Both are errors of the operator."""
    with pytest.raises(ModelConfigurationError, match="No such file"):
        read_task(tmp_path)
    (tmp_path / "task.json").write_bytes(b"\xff")
    with pytest.raises(ModelConfigurationError, match="cannot be read"):
        read_task(tmp_path)
