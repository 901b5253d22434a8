# SPDX-License-Identifier: Apache-2.0
"""Gemma through OpenVINO GenAI is equal to transformers token for token, beyond its windows, too.

optimum-intel refuses these with a transformers as new as ours; the builder lifts that because of
this test.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders.runs import Built, run_kept
from tests.builders.warm import make_warm, run_warm
from tests.engine_cache import content, kept

pytestmark = pytest.mark.engine

TESTS = Path(__file__).resolve().parents[1]
BUILD = TESTS.parent / "builders" / "openvino" / "build.py"
SPELLER = TESTS.parent / "examples" / "number-speller" / "checkpoint"
SHORT = [{"text_input": f"{number * 7919} in English:"} for number in range(8)]
LONG = [{"text_input": " ".join(str(n * first) for n in range(40))} for first in range(1, 9)]

Gemma = Callable[..., Path]


@pytest.fixture(scope="module")
def gemma(openvino_environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Gemma:
    """A small Gemma with random weights that attend."""
    script = TESTS / "tiny_gemma.py"

    def make(name: str, *window: str) -> Path:
        def write(folder: Path) -> None:
            make_warm(openvino_environment, script, name, SPELLER, folder, *window)

        python = openvino_environment.parents[1].name
        inputs = {"script": content(script), "python": python, "name": [name, *window]}
        return kept("gemma", inputs, write, tmp_path_factory.mktemp("gemma") / "checkpoint")

    return make


def build(python: Path, checkpoint: Path, folder: Path, **answers: float) -> Built:
    """In FP32, evaluated against the checkpoint itself."""
    prompts = folder / "prompts.jsonl"
    lines = [json.dumps(prompt) for prompt in SHORT + LONG]
    prompts.write_text("\n".join(lines), encoding="utf-8")
    asked = {
        "schema": "tritonctl.build/1",
        "model": "gemma",
        "checkpoint": str(checkpoint),
        "precision": "fp32",
        "limits": {"max_batch_size": 8, "max_seq_len": 256},
        "evaluation": {"prompts": str(prompts), "max_tokens": 32, **answers},
    }
    (folder / "build").mkdir()
    return run_kept(python, BUILD, asked, folder / "build")


@pytest.mark.parametrize("name", ["GemmaForCausalLM", "Gemma3ForCausalLM"])
def test_answers_are_those_of_transformers(
    openvino_environment: Path, gemma: Gemma, name: str, tmp_path: Path
) -> None:
    done = build(openvino_environment, gemma(name), tmp_path, min_exact_match=1.0)
    assert done.code == 0, done.result
    figures = done.result["evaluation"]
    assert (figures["prompts"], figures["exact_match"]) == (len(SHORT + LONG), 1.0)


# What each folder's model makes of a text.
ANSWERS = """
import json, sys, torch, transformers
from tokenizers import Tokenizer
*folders, text = sys.argv[1:]
ids = Tokenizer.from_file(folders[0] + "/tokenizer.json").encode(text).ids
for folder in folders:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    made = model.generate(torch.tensor([ids]), max_new_tokens=8, do_sample=False)
    print(json.dumps(made[0, len(ids):].tolist()))
"""


@pytest.mark.exhaustive
def test_windows_matter_here(openvino_environment: Path, gemma: Gemma, tmp_path: Path) -> None:
    """Or the test above would prove nothing: with a longer window the same weights differ."""
    script = tmp_path / "answers.py"
    script.write_text(ANSWERS, encoding="utf-8")
    folders = [gemma("Gemma3ForCausalLM"), gemma("Gemma3ForCausalLM", "256")]
    words: list[str | Path] = [script, *folders, LONG[0]["text_input"]]
    done = run_warm(openvino_environment, words, tmp_path)
    assert done.returncode == 0, done.stderr
    near, far = done.stdout.splitlines()
    assert near != far
