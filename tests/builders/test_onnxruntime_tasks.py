# SPDX-License-Identifier: Apache-2.0
"""Tasks built for real: each proven against its reference library, in the builder's environment.

Small checkpoints with random weights; a real encoder and every combination are exhaustive.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.builders.warm import make_warm
from tests.engine_cache import content, kept

pytestmark = pytest.mark.engine
exhaustive = pytest.mark.exhaustive

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
SOURCES = (
    "builders/onnxruntime",
    "builders/shared",
    "python_backends/tasklib",
    "tests/tiny_encoder.py",
    "tests/tiny_task.py",
    "tests/task_builds.py",
)
NAMES = {"0": "O", "1": "B-PER", "2": "I-PER", "3": "B-LOC", "4": "I-LOC"}
POOLING = {"pooling_mode": ["mean", "cls"], "include_prompt": False}
DENSE = {"out_features": 24, "activation": "GELU", "use_residual": True}
PAIRS = [
    {"query": "Which city is the capital of France?", "text": "Paris is the capital of France."},
    {"query": "What jumps over the dog?", "text": "The quick brown fox jumps over a lazy dog."},
    {"query": "Whom did Merkel meet?", "text": "Angela Merkel met Emmanuel Macron in New York."},
]
# One of each task, everything that a checkpoint's files can ask for in it.
BUILDS: dict[str, dict[str, Any]] = {
    "embedding": {
        "checkpoint": {
            "class": "BertModel",
            "steps": [["Pooling", POOLING], ["Dense", DENSE], ["Normalize", {}]],
            "prompts": {"query": "What is: ", "document": ""},
            "default_prompt": "query",
            "format": "old",
            "settings": {"max_seq_length": 40, "do_lower_case": True},
        },
        "request": {"task": "embedding", "precision": "int8"},
        "pairs": True,
    },
    "rerank": {
        "checkpoint": {
            "class": "RobertaForSequenceClassification",
            "config": {"num_labels": 1},
            "cross_encoder": "torch.nn.modules.linear.Identity",
        },
        "request": {"task": "rerank"},
    },
    "entities": {
        "checkpoint": {
            "class": "BertForTokenClassification",
            "config": {"num_labels": 5, "id2label": NAMES},
        },
        "request": {"task": "token_classification"},
    },
}
FAMILIES = (
    *("Albert", "Bert", "Camembert", "DebertaV2", "DistilBert", "Electra"),
    *("MPNet", "ModernBert", "Roberta", "XLMRoberta"),
)
MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {"precision": "fp32"},
    "fp16": {"precision": "fp16"},
    "int8": {"precision": "int8"},
}


def every_combination() -> dict[str, dict[str, Any]]:
    """Each family in each task; poolings and precisions take turns."""
    made: dict[str, dict[str, Any]] = {}
    for at, family in enumerate(FAMILIES):
        precisions = list(PRECISIONS.values())
        mode, others = MODES[at % len(MODES)], [["Normalize", {}]] * (at % 2)
        tasks: dict[str, tuple[str, dict[str, Any]]] = {
            "embedding": ("Model", {"steps": [["Pooling", {"pooling_mode": mode}], *others]}),
            "classification": ("ForSequenceClassification", {"config": {"num_labels": 3}}),
            "rerank": ("ForSequenceClassification", {"config": {"num_labels": 1}}),
            "token_classification": ("ForTokenClassification", {"config": {"num_labels": 5}}),
        }
        for turn, (task, (head, changes)) in enumerate(tasks.items()):
            made[f"{family}-{task}"] = {
                "checkpoint": {"class": f"{family}{head}", **changes},
                "request": {"task": task, **precisions[(at + turn) % len(precisions)]},
            }
    return made


def built(python: Path, builds: dict[str, dict[str, Any]], folder: Path) -> dict[str, Any]:
    """The result of each build by its name, all made in one process."""
    pairs = folder / "pairs.jsonl"
    lines = [json.dumps(pair) for pair in PAIRS]
    asked = []
    for name, one in builds.items():
        request = dict(one["request"])
        if one.get("pairs"):
            request["evaluation"] = {"prompts": str(pairs), "max_tokens": 64, "recall_at": 1}
        asked.append({"name": name, "checkpoint": one["checkpoint"], "request": request})

    def make(entry: Path) -> None:
        pairs.write_text("\n".join(lines), encoding="utf-8")
        make_warm(python, TESTS / "task_builds.py", entry, text=json.dumps(asked))

    inputs = {
        "sources": [content(ROOT / source) for source in SOURCES],
        "python": python.parents[1].name,
        "builds": builds,
        "lines": lines,
    }
    entry = kept("tasks", inputs, make, folder / "built")
    results = {name: json.loads((entry / name / "S.json").read_text("utf-8")) for name in builds}
    for name, result in results.items():
        assert result["status"] == "ok", (name, result["problem"])
        result["staging"] = entry / name / "staging"
    return results


@pytest.fixture(scope="module")
def results(
    onnxruntime_environment: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """The builds of BUILDS."""
    return built(onnxruntime_environment, BUILDS, tmp_path_factory.mktemp("tasks"))


def figures(result: dict[str, Any]) -> dict[str, float]:
    return {one["name"]: one["value"] for one in result["proof"]["figures"]}


def test_every_mistake_is_seen(results: dict[str, Any]) -> None:
    """Each that the checkpoint makes possible, by the measure that it concerns."""
    seen = {
        name: {control["name"]: control["figure"] for control in result["proof"]["controls"]}
        for name, result in results.items()
    }
    assert seen["embedding"] == {
        "texts cut one token too early": "tokens",
        "prompts left out": "tokens",
        "capital letters kept": "tokens",
        "padding not masked": "batch cosine",
        "mean for cls pooling": "cosine",
        "the prompt pooled": "cosine",
        "the activation of Dense dropped": "cosine",
        "Normalize dropped": "length",
    }
    assert seen["rerank"] == {
        "texts cut one token too early": "tokens",
        "the two texts of a pair exchanged": "tokens",
        "padding not masked": "batch score",
        "sigmoid for the activation none": "score",
    }
    assert seen["entities"]["labels in reverse order"] == "score"
    assert seen["entities"]["none for the activation softmax"] == "score"


def test_figures_keep_their_bounds(results: dict[str, Any]) -> None:
    """At fp32 the reference's to seven digits; what int8 costs is reported."""
    for name in ("rerank", "entities"):
        assert figures(results[name])["score"] < 1e-5
        assert figures(results[name])["batch score"] < 1e-5
    assert figures(results["rerank"])["order"] == 1
    assert figures(results["entities"])["entities"] == 1
    assert 0.95 <= figures(results["embedding"])["cosine"] < 1 - 1e-7
    own = results["embedding"]["proof"]["evaluation"]
    assert (own["metric"], own["samples"], own["least"]) == ("recall@1", 3, None)
    assert 0 <= own["engine"] <= 1


def test_the_graph_is_that_of_the_task(results: dict[str, Any]) -> None:
    """Pooling and activation inside; the mask of the pooling where prompts are left out of it."""
    inputs = {
        name: [tensor["name"] for tensor in result["tensors"]["inputs"]]
        for name, result in results.items()
    }
    plain = ["input_ids", "attention_mask"]
    assert inputs["embedding"] == [*plain, "token_type_ids", "pooling_mask"]
    assert inputs["rerank"] == plain
    outputs = {name: result["tensors"]["outputs"] for name, result in results.items()}
    dims = {
        name: {tensor["name"]: tensor["dims"] for tensor in tensors}
        for name, tensors in outputs.items()
    }
    assert dims == {
        "embedding": {"embedding": [24]},
        "rerank": {"score": [1], "logit": [1]},
        "entities": {"token_scores": [-1, 5]},
    }
    assert {each["data_type"] for some in outputs.values() for each in some} == {"TYPE_FP32"}


def test_what_the_artefact_keeps(results: dict[str, Any]) -> None:
    """The task for serving, and inputs with the reference's answers for whoever asks the server."""
    staging = results["embedding"]["staging"]
    task = json.loads((staging / "task" / "task.json").read_text("utf-8"))
    assert task["text"]["max_seq_len"] == 40
    assert task["text"]["default_prompt"] == "query"
    assert task["embedding"] == {"dimension": 24, "normalized": True}
    assert task["reference"]["library"] == "sentence-transformers"
    proof = json.loads((staging / "proof" / "cases.json").read_text("utf-8"))
    assert proof["bounds"]["cosine"] == 0.95
    assert len(proof["cases"]) == results["embedding"]["proof"]["cases"]
    assert {len(case["expected"]["embedding"]) for case in proof["cases"]} == {24}
    assert any(case["expected"]["truncated"] for case in proof["cases"])
    assert any(case["input"].get("prompt_name") == "document" for case in proof["cases"])
    reranked = json.loads((results["rerank"]["staging"] / "proof/cases.json").read_text("utf-8"))
    assert reranked["cases"][0]["input"].keys() == {"query", "text_input"}
    listed = {entry["path"] for entry in results["rerank"]["files"]}
    assert {"task/task.json", "proof/cases.json", "tokenizer/tokenizer.json"} <= listed


@exhaustive
def test_every_family_in_every_task(onnxruntime_environment: Path, tmp_path: Path) -> None:
    """Each keeps the bounds of its precision: a build that does not has failed."""
    made = built(onnxruntime_environment, every_combination(), tmp_path)
    assert len(made) == len(FAMILIES) * 4
    assert all(result["proof"]["figures"] for result in made.values())


@exhaustive
def test_a_real_encoder_in_every_precision(
    onnxruntime_environment: Path, minilm: Path, tmp_path: Path
) -> None:
    """all-MiniLM-L6-v2, as its own files say it; a finer precision is closer.

    Ranges of six texts are no measure of what static int8 can do: it keeps its bound.
    """
    pairs = tmp_path / "calibration.jsonl"
    pairs.write_text("\n".join(json.dumps(pair) for pair in PAIRS), encoding="utf-8")
    limits = {"samples": 512, "max_seq_len": 64, "batch_size": 1, "seed": 1}
    static = {
        "precision": "int8",
        "options": {"calibration": "static"},
        "calibration": {"data": str(pairs), **limits},
    }
    builds = {
        name: {
            "checkpoint": str(minilm),
            "request": {"task": "embedding", **changes},
            "pairs": True,
        }
        for name, changes in {**PRECISIONS, "static": static}.items()
    }
    made = built(onnxruntime_environment, builds, tmp_path)
    cosines = [figures(made[name])["cosine"] for name in ("fp32", "fp16", "int8")]
    assert cosines == sorted(cosines, reverse=True)
    assert cosines[0] > 1 - 1e-6
    assert made["int8"]["proof"]["evaluation"]["reference"] == 1
