# SPDX-License-Identifier: Apache-2.0
"""Tasks on OpenVINO: exported, given their precision and proven, all for real, on this CPU.

What a request may not ask is refused without OpenVINO.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.builders.conftest import Refusal, modules_of
from tests.builders.runs import Built, run, run_kept
from tests.builders.task_exports import ROWS, Export, Exported, calibration_of

engine = pytest.mark.engine
exhaustive = pytest.mark.exhaustive

BUILD = Path(__file__).resolve().parents[2] / "builders" / "openvino" / "build_task.py"
POOLED = {"steps": [["Pooling", {"pooling_mode": "mean"}], ["Normalize", {}]]}
ENCODER = {"class": "BertModel", **POOLED}
HAS_BF16 = "avx512_bf16" in Path("/proc/cpuinfo").read_text("utf-8")
STATIC = "int8 static"
PRECISIONS = ("fp32", "fp16", *(("bf16",) if HAS_BF16 else ()), "int8", STATIC)
CLASSES: tuple[tuple[str, Any], ...] = (
    ("embedding", {"class": "ModernBertModel", **POOLED}),
    ("embedding", {"class": "MPNetModel", **POOLED}),
    ("embedding", {"class": "XLMRobertaModel", **POOLED}),
    (
        "classification",
        {"class": "DebertaV2ForSequenceClassification", "config": {"num_labels": 3}},
    ),
    ("rerank", {"class": "RobertaForSequenceClassification", "config": {"num_labels": 1}}),
    ("token_classification", {"class": "BertForTokenClassification", "config": {"num_labels": 5}}),
    ("image_classification", "ResNetForImageClassification"),
    ("image_classification", "ConvNextForImageClassification"),
    ("image_classification", "ViTForImageClassification"),
    ("image_embedding", "ViTModel"),
    ("image_embedding", "CLIPVisionModelWithProjection"),
)
# By how much of its length a vector is another (0.28 of at most 0.2), of a tiny tower.
REFUSED = {("CLIPVisionModelWithProjection", STATIC): "length is 0."}

Compile = Callable[..., Built]


@pytest.fixture(scope="module")
def compiled(
    openvino_environment: Path,
    calibration: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Compile:
    """Runs the second stage on what the first has left; `fresh`: not what an equal run has left."""

    def built(source: Exported, precision: str, *, fresh: bool = False, **changes: Any) -> Built:
        asked = {
            "schema": "tritonctl.build/1",
            "model": "m",
            "checkpoint": str(source.folder),
            **source.request,
            "stage": "compile",
            "source": str(source.folder),
            "precision": precision,
            **changes,
        }
        if precision == STATIC:
            asked["precision"] = "int8"
            asked["options"] = {"calibration": "static"}
            asked["calibration"] = calibration_of(source.request["task"], calibration)
        folder = tmp_path_factory.mktemp("compile")
        return (run if fresh else run_kept)(openvino_environment, BUILD, asked, folder)

    return built


def figures(built: Built) -> dict[str, float]:
    """The measures of the proof."""
    assert built.code == 0, built.result
    return {one["name"]: one["value"] for one in built.result["proof"]["figures"]}


@engine
def test_an_engine_of_a_task_is_proven_and_whole(export: Export, compiled: Compile) -> None:
    """With what its steps need, how it is run, and the proof of the export carried on."""
    source = export("embedding", ENCODER, "fp32")
    done = compiled(source, "fp32")
    measured = figures(done)
    assert measured["tokens"] == 1
    assert measured["cosine"] > 1 - 1e-6
    assert measured["batch cosine"] > 1 - 1e-6
    before = source.result["proof"]
    assert done.result["proof"]["controls"] == before["controls"]
    assert done.result["proof"]["reference"] == before["reference"]
    assert done.result["tensors"] == source.result["tensors"]
    assert [one["path"] for one in done.result["files"] if "tokenizer" not in one["path"]] == [
        "engine/openvino_model.bin",
        "engine/openvino_model.xml",
        "proof/cases.json",
        "task/task.json",
    ]
    runtime = done.result["runtime"]
    assert runtime["properties"]["INFERENCE_PRECISION_HINT"] == "f32"
    assert runtime["padding"]["inputs"]["attention_mask"] == 0
    assert done.result["limits"]["max_seq_len"] == source.result["limits"]["max_seq_len"]


@engine
def test_int8_keeps_its_bounds(export: Export, compiled: Compile) -> None:
    """Something of the answers is lost, little enough, and a batch changes nothing."""
    done = compiled(export("embedding", ENCODER, "fp32"), "int8")
    assert 0.99 <= figures(done)["cosine"] < 1 - 1e-6
    assert figures(done)["batch cosine"] > 1 - 1e-5
    assert done.result["versions"]["nncf"]


@exhaustive
@engine
def test_an_engine_that_answers_otherwise_fails(export: Export, compiled: Compile) -> None:
    """Told with the measure and its bound, here one of the user's own, and what to do."""
    source = export("embedding", ENCODER, "fp32")
    strict = compiled(source, "int8", options={"bounds": {"cosine": 0.9999999}})
    assert "the int8 engine does not answer as sentence-transformers" in strict.result["problem"]
    assert "move a bound with engine.options.bounds" in strict.result["remedy"]


@exhaustive
@engine
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("task", "checkpoint"), CLASSES)
def test_every_task(
    export: Export, compiled: Compile, task: str, checkpoint: Any, precision: str
) -> None:
    """Each keeps the bounds of its precision: a build that does not has failed, and says why."""
    done = compiled(export(task, checkpoint, "fp32"), precision)
    if lost := REFUSED.get((str(checkpoint), precision)):
        assert lost in done.result["problem"]
        return
    assert figures(done), done.result


@exhaustive
@engine
@pytest.mark.parametrize("precision", [one for one in PRECISIONS if one != STATIC])
def test_a_real_encoder(export: Export, compiled: Compile, minilm: Path, precision: str) -> None:
    """all-MiniLM-L6-v2, as its own files say it; four texts are too few to calibrate it on."""
    measured = figures(compiled(export("embedding", minilm, "fp32"), precision))
    assert measured["cosine"] > {"fp32": 1 - 1e-6, "int8": 0.99}.get(precision, 0.999)


@exhaustive
@engine
def test_the_same_twice(export: Export, compiled: Compile) -> None:
    """Byte for byte, also where ranges are measured."""
    source = export("embedding", ENCODER, "fp32")
    first, second = (compiled(source, STATIC, fresh=True).result["files"] for _ in range(2))
    assert first == second


@pytest.fixture(scope="module")
def builder() -> Iterator[SimpleNamespace]:
    """The builder's modules that need the standard library alone."""
    with modules_of("openvino", ("task_options",)) as modules:
        yield modules


def asked(builder: SimpleNamespace, /, **changes: Any) -> Any:
    """A request of the second stage."""
    limits = builder.request_types.RequestedLimits(max_batch_size=ROWS)
    given = {"task": "embedding", "precision": "fp32", "limits": limits, "stage": "compile"}
    return builder.request_types.BuilderRequest("m", Path("/checkpoint"), **given | changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"precision": "int4"}, "the openvino builder has no precision 'int4'"),
        ({"precision": "int8", "options": {"calibration": "static"}}, "has no calibration data"),
        (
            {
                "precision": "int8",
                "task": "image_embedding",
                "options": {"calibration": "static"},
            },
            "needs images",
        ),
        ({"options": {"calibration": "static"}}, "calibration is for int8"),
        ({"options": {"calibration": "entropy"}}, "engine.options.calibration is 'entropy'"),
        ({"kv_cache_dtype": "u8"}, "has no KV cache"),
        ({"options": {"group_size": 64}}, "unknown key 'group_size'"),
        ({"options": {"padding": 1}}, "engine.options.padding is 1"),
        ({"options": {"bounds": {"cosin": 1}}}, "unknown measure 'cosin' (did you mean cosine?)"),
    ],
)
def test_what_is_refused(
    builder: SimpleNamespace, refusal: Refusal, changes: dict[str, Any], said: str
) -> None:
    """Before anything is imported, by its name."""
    assert said in refusal(
        lambda: builder.task_options.read_task_options(asked(builder, **changes))
    )


def test_bf16_where_the_cpu_has_none(builder: SimpleNamespace, refusal: Refusal) -> None:
    """Told in advance; a machine that does not say what it can is left to OpenVINO."""
    check = builder.task_options.refuse_without_bf16
    assert "needs a CPU with AVX512-BF16 or AMX" in refusal(lambda: check({"avx2", "fma"}))
    for flags in ({"avx512_bf16"}, {"amx_bf16", "avx2"}, None):
        check(flags)
