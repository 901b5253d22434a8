# SPDX-License-Identifier: Apache-2.0
"""Prints docs/reference/support-matrix.md from builder.toml files and results: `make reference`."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).parents[1]
RESULTS = CHECKOUT / "benchmarks" / "results" / "architectures.md"
# Precisions by architecture, in addition to RESULTS: benchmarks/results/image-tasks.md and gpu.md.
ONNXRUNTIME = {
    "BertModel": "H200: fp32 fp16 served, int8 timed only",
    "CLIPModel": "fp32 fp16 int8",
    "CLIPTextModelWithProjection": "fp32",
    "ResNetForImageClassification": "int8 static",
    "ResNetModel": "int8 static",
    "ViTModel": "fp32 fp16 int8",
}
# tests/builders/test_openvino_tasks.py.
OPENVINO_TASKS = (
    "BertForTokenClassification",
    "BertModel",
    "CLIPVisionModelWithProjection",
    "ConvNextForImageClassification",
    "DebertaV2ForSequenceClassification",
    "MPNetModel",
    "ModernBertModel",
    "ResNetForImageClassification",
    "RobertaForSequenceClassification",
    "ViTForImageClassification",
    "ViTModel",
    "XLMRobertaModel",
)
# tests/builders/test_tensorrt_tasks.py.
TENSORRT = (
    "BertForTokenClassification",
    "BertModel",
    "CLIPModel",
    "CLIPVisionModelWithProjection",
    "ConvNextForImageClassification",
    "DebertaV2ForSequenceClassification",
    "ModernBertModel",
    "ResNetForImageClassification",
    "RobertaForSequenceClassification",
    "ViTModel",
)
# benchmarks/results/gpu.md: built, run and compared on an H100 with TensorRT 8.6.
TENSORRT_ON_GPU = {
    "ConvNextForImageClassification": "fp16",
    "ResNetForImageClassification": "fp32 fp16 int8",
}
# tests/builders/test_openvino_build.py and test_openvino_gemma.py.
OPENVINO_TEXT = {
    "LlamaForCausalLM": "fp32 fp16 int8 int4, served",
    "Gemma3ForCausalLM": "fp32",
    "GemmaForCausalLM": "fp32",
}
# tests/builders/test_tensorrt_llm_*.py and benchmarks/results/accuracy.md; gpu.md.
TENSORRT_LLM = {
    "LlamaForCausalLM": "CPU: all but nvfp4; H200 or H100: all but fp16",
    "MistralForCausalLM": "CPU: int4_awq, sharded for tp_size: 2",
    "Qwen2ForCausalLM": "CPU: int8_sq, w4a8_awq",
}
_HEAD = """\
<!-- Made by `make reference` from builders/*/builder.toml, benchmarks/results/architectures.md and
     docs/support_matrix_page.py: edits are lost. -->

# Support matrix

Which architectures each builder accepts, and what a test or a recorded run has shown. *accepted*: the builder
accepts it and no repeatable test covers it. Every build of a task compares the engine with its reference
library and fails below the bounds of its precision; a text engine does so with `evaluation`. An architecture
that is not listed is refused. A *mock* is our re-creation of an NVIDIA interface.

## By builder

| builder | on a CPU | on a GPU | not tested |
|---|---|---|---|
| `openvino` | text generation: built, served by a real Triton, load-tested, tuned, rolled out; other tasks: see below | – | – |
| `onnxruntime` | built, compared with the reference library, served | one ONNX model served on an H200 ([figures](../../benchmarks/results/gpu.md#an-onnx-model-in-the-embedded-triton)) | serving on other GPUs |
| `tensorrt` | tasks exported and compared; compiled by a mock of TensorRT 10 that runs ONNX Runtime | plans built, run and compared with TensorRT 8.6 on an H100, [not all graphs](../../benchmarks/results/gpu.md#tensorrt-plans) | TensorRT 10 plans; serving; text models |
| `tensorrt_llm`, *quantise* | all precisions but `nvfp4` ([accuracy](../../benchmarks/results/accuracy.md)) | all but `fp16` on an H200 or an H100 ([figures](../../benchmarks/results/gpu.md#quantising)) | accuracy of real checkpoints |
| `tensorrt_llm`, *compile*, *package*, serving | build requests checked against mocks of NVIDIA's parsers and classes | – | `trtllm-build`, TensorRT-LLM's runtimes and NVIDIA's images on any GPU |

MIG, several GPUs in one server and other drivers were not available. Clusters:
[what no test has shown](../how-to/kubernetes.md#what-no-test-has-shown).
"""  # noqa: E501 - a page
_TEXT = """\
## Text generation

`openvino`: exported, and equal to transformers token for token in fp32
([small random weights](../../benchmarks/results/decoders.md)); *accepted*: no test repeats that.
`tensorrt_llm`: quantised and read back tensor by tensor; compiling and serving as above.
"""
_TASKS = """\
## Tasks of texts and images

`onnxruntime`: precisions that were built on a CPU and kept their bounds, mostly with small random weights
([figures](../../benchmarks/results/architectures.md)). `openvino`: *all* is fp32, fp16, bf16 (on CPUs that have
it) and int8. `tensorrt`: *mock* as above, in fp32, fp16 and int8.
"""  # noqa: E501 - a page
_FILES = """\
A given ONNX file (`task: tensors`) may hold any graph of tensors: `onnxruntime`, `tensorrt` (no scalars). Without a batch as
first dimension, it needs `max_batch_size: 0`.
"""  # noqa: E501 - a page


def page() -> str:
    """Return the page: builders, then architectures."""
    openvino, onnxruntime, llm = (
        _builder(name) for name in ("openvino", "onnxruntime", "tensorrt_llm")
    )
    _require_listed(openvino, OPENVINO_TEXT)
    _require_listed(llm, TENSORRT_LLM)
    _require_listed(onnxruntime, (*ONNXRUNTIME, *OPENVINO_TASKS, *TENSORRT, *TENSORRT_ON_GPU))
    built = _built_precisions()
    parts = [
        _HEAD,
        _TEXT,
        *_table(
            ["architecture", "`openvino`", "`tensorrt_llm`"],
            (
                [
                    f"`{name}`",
                    OPENVINO_TEXT.get(name, "accepted")
                    if name in openvino["architectures"]
                    else "–",
                    TENSORRT_LLM.get(name, "–"),
                ]
                for name in sorted({*openvino["architectures"], *llm["architectures"]})
            ),
        ),
        *(f"Not `{name}`: {reason}." for name, reason in openvino["refused"].items()),
        *(
            f"Not `{name}` with `{key}`: {reason}."
            for name, settings in openvino["refused_settings"].items()
            for key, reason in settings.items()
        ),
        "",
        _TASKS,
        *_table(
            ["architecture", "`onnxruntime`", "`openvino`", "`tensorrt`"],
            (
                [
                    f"`{name}`",
                    "; ".join(filter(None, (built.get(name), ONNXRUNTIME.get(name)))) or "accepted",
                    "all" if name in OPENVINO_TASKS else "accepted",
                    _tensorrt(name),
                ]
                for name in onnxruntime["architectures"]
            ),
        ),
        _FILES,
    ]
    return "\n".join(parts).rstrip() + "\n"


def _builder(name: str) -> dict[str, Any]:
    path = CHECKOUT / "builders" / name / "builder.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _require_listed(builder: dict[str, Any], names: Iterable[str]) -> None:
    """Raise ValueError for an architecture that the builder does not take."""
    if unknown := sorted(set(names) - set(builder["architectures"])):
        raise ValueError(f"builder {builder['name']} does not take {', '.join(unknown)}")


def _built_precisions() -> dict[str, str]:
    """Return the precisions that RESULTS has a parity of, by architecture."""
    built: dict[str, list[str]] = {}
    row = r"^\| (?:\*\*.*?\*\*, )?(\w+) \| (\S+) \| (\S+) \| (\S+) \|"
    for name, *parities in re.findall(row, RESULTS.read_text(encoding="utf-8"), re.MULTILINE):
        precisions = built.setdefault(name, [])
        for precision, parity in zip(("fp32", "fp16", "int8"), parities, strict=True):
            if parity[0].isdigit() and precision not in precisions:
                precisions.append(precision)
    order = ("fp32", "fp16", "int8")
    return {name: " ".join(sorted(found, key=order.index)) for name, found in built.items()}


def _tensorrt(name: str) -> str:
    cells = ["mock"] if name in TENSORRT else []
    if precisions := TENSORRT_ON_GPU.get(name):
        cells.append(f"H100: {precisions}")
    return "; ".join(cells) or "accepted"


def _table(head: list[str], rows: Iterable[list[str]]) -> Iterator[str]:
    for cells in (head, ["---"] * len(head), *rows):
        yield f"| {' | '.join(cells)} |"
    yield ""


if __name__ == "__main__":
    sys.stdout.write(page())
