# SPDX-License-Identifier: Apache-2.0
"""Reads prompts and model family from config_sentence_transformers.json.

Standard library only.
"""

from pathlib import Path
from typing import Any

from buildlib.problems import BuildError, read_json_object
from buildlib.weights import DOWNLOAD_AGAIN

FILE = "config_sentence_transformers.json"
SENTENCE_TRANSFORMER, CROSS_ENCODER = "SentenceTransformer", "CrossEncoder"


def read_model_config(folder: Path) -> dict[str, Any]:
    """Return the content of the file, or {} without a file. Raises BuildError."""
    file = folder / FILE
    return read_json_object(file, remedy=DOWNLOAD_AGAIN) if file.is_file() else {}


def require_family(folder: Path, config: dict[str, Any], family: str, task: str) -> None:
    """Raise BuildError unless the model is of `family`. Old files without a family pass."""
    model_type = config.get("model_type", family)
    if model_type != family:
        raise BuildError(
            f"{folder / FILE}: model_type is {model_type}, and the task {task} is for a {family}",
            remedy="Choose the task that the model was trained for."
            if model_type in (SENTENCE_TRANSFORMER, CROSS_ENCODER)
            else "Use a model with one dense vector per text.",
        )


def read_prompts(folder: Path, config: dict[str, Any]) -> tuple[dict[str, str], str | None]:
    """Return the prompts by name, and the name of the default prompt.

    Raises:
        BuildError: a prompt is not text, or the default prompt does not exist.
    """
    prompts = config.get("prompts") or {}
    if not isinstance(prompts, dict) or any(
        not isinstance(text, str | None) for text in prompts.values()
    ):
        raise BuildError(
            f"{folder / FILE}: prompts is {prompts!r:.120}, expected texts by name",
            remedy=DOWNLOAD_AGAIN,
        )
    default = config.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise BuildError(
            f"{folder / FILE}: default_prompt_name is {default!r}, and its prompts are: "
            f"{', '.join(prompts) or 'none'}",
            remedy="Correct default_prompt_name as the model was trained, or set it to null.",
        )
    return {name: text or "" for name, text in prompts.items()}, default
