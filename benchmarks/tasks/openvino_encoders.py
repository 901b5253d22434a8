# SPDX-License-Identifier: Apache-2.0
"""OpenVINO against ONNX Runtime on the exported graphs of encoders, on this machine's CPU.

    python benchmarks/tasks/openvino_encoders.py MINILM

MINILM: the folder of all-MiniLM-L6-v2. A BERT of base size and a small ViT get random weights:
their times do not depend on them. Each graph is what the onnxruntime builder makes: ONNX Runtime
gets it as it is served (fp32, dynamic int8), OpenVINO as exported (fp32, bf16 inside, int8 of
NNCF). Run it where the requirements of both builders are.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
BUILD = HERE.parents[1] / "builders" / "onnxruntime" / "build.py"
THREADS, ROUNDS, SEED = 2, 5, 19
BATCHES = (1, 8, 32)
CALIBRATION_SAMPLES = 8
# By model: what an item is, and its tokens.
ITEMS = {
    "MiniLM": {"32 tokens": 32, "128 tokens": 128},
    "BERT base": {"64 tokens": 64},
    "ViT small": {"224 x 224": 0},
}
IMAGE_FILES = {"ORT fp32": "fp32", "ORT int8": "int8", "OV": "plain"}
ORT, OPENVINO = ("ORT fp32", "ORT int8"), ("OV fp32", "OV bf16", "OV int8")

HEAD = """\
# OpenVINO for encoders, on a CPU

{versions}, on graphs of the `onnxruntime` builder, with {threads} threads on {cpu}:
milliseconds of a run, the fastest of several taken in turn
([how](../tasks/openvino_encoders.py)). ORT int8 is dynamic, as served; OV int8 is NNCF's,
calibrated on random input. Cosine is to ORT fp32, of random input. The last columns are ONNX
Runtime's time over OpenVINO's at fp32 and at int8.
"""

Feed = dict[str, Any]
Run = Callable[[Feed], Any]


@dataclass
class Model:
    """One checkpoint: its graphs by name, and what one item is (shape behind the batch)."""

    name: str
    item: str
    length: int
    graphs: dict[str, Path]
    fastest: dict[tuple[str, int], float] = field(default_factory=dict)
    cosine: dict[str, float] = field(default_factory=dict)


def main() -> None:
    """Build, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("minilm", type=Path)
    parser.add_argument("--graphs", type=Path, help="keep the graphs here, and take them again")
    parser.add_argument("--only", help="models whose names begin so")
    parser.add_argument("--prepare", action="store_true", help="make the graphs, measure nothing")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        models = list(_models(asked.minilm, asked.graphs or Path(made), asked.only or ""))
        for model in [] if asked.prepare else models:
            _measure(model)
    if asked.prepare:
        return
    sys.stdout.write(_text(models))


def _models(minilm: Path, folder: Path, only: str) -> Iterator[Model]:
    bert, vit = folder / "bert-base", folder / "vit-small"
    if not vit.is_dir():
        _save_checkpoints(bert, vit, minilm)
    sources = {"MiniLM": minilm, "BERT base": bert, "ViT small": vit}
    for name, checkpoint in sources.items():
        if not name.startswith(only):
            continue
        place = folder / f"{name}-graphs"
        images = name == "ViT small"
        graphs = _image_graphs(place, vit) if images else _graphs(place, checkpoint)
        for item, length in ITEMS[name].items():
            model = Model(name, item, length, graphs)
            graphs["OV int8"] = _quantised(model, place)
            yield model


def _save_checkpoints(bert: Path, vit: Path, minilm: Path) -> None:
    import torch
    import transformers

    torch.manual_seed(SEED)
    transformers.BertModel(transformers.BertConfig()).save_pretrained(bert)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(minilm / name, bert / name)
    small = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}
    transformers.ViTModel(transformers.ViTConfig(**small)).save_pretrained(vit)
    transformers.ViTImageProcessor().save_pretrained(vit)


def _graphs(folder: Path, checkpoint: Path) -> dict[str, Path]:
    """By variant; OpenVINO takes the operators of ONNX alone, not ONNX Runtime's fused ones."""
    plain = {"graph_optimization_level": "basic"}
    return {
        "ORT fp32": _built(folder / "fp32", checkpoint, "fp32", {}),
        "ORT int8": _built(folder / "int8", checkpoint, "int8", {}),
        "OV": _built(folder / "plain", checkpoint, "fp32", plain),
    }


def _quantised(model: Model, folder: Path) -> Path:
    """OpenVINO's graph in int8, weights and activations; times do not depend on the ranges."""
    import nncf
    import openvino

    made = folder / "int8.xml"
    if not made.is_file():
        read = openvino.Core().read_model(model.graphs["OV"])
        inputs = [one.get_any_name() for one in read.inputs]
        samples = [_feed(model, 1, seed) for seed in range(CALIBRATION_SAMPLES)]
        small = nncf.quantize(
            read,
            nncf.Dataset(samples, lambda feed: {name: feed[name] for name in inputs}),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=CALIBRATION_SAMPLES,
        )
        openvino.save_model(small, made)
    return made


def _image_graphs(folder: Path, checkpoint: Path) -> dict[str, Path]:
    """The same without the builder's proof, which would take longer than the measurement."""
    made = {name: folder / file / "model.onnx" for name, file in IMAGE_FILES.items()}
    if all(file.is_file() for file in made.values()):
        return made
    builders = BUILD.parents[1]
    sys.path[:0] = [str(BUILD.parent), str(builders / "shared")]
    sys.path.append(str(builders.parent / "python_backends"))
    convert, images, options, vision, request, reader = (
        importlib.import_module(name)
        for name in (
            *("convert", "images", "options", "vision"),
            *("buildlib.request", "onnxlib.reader"),
        )
    )
    asked = request.Request(
        *("m", checkpoint, "fp32", request.Limits(max_batch_size=max(BATCHES))),
        options={"pooling": "cls"},
        task="image_embedding",
    )
    build = images.checked_images(asked, options.read_options(asked))
    work = folder / "work"
    work.mkdir(parents=True)
    exported = vision.export_vision(vision.load_vision(build.task, asked), build.options)
    reader.write_model(exported, work / "model.onnx", external=True)
    for name, file in made.items():
        file.parent.mkdir()
        level = "basic" if name == "OV" else build.options.graph_optimization_level
        convert.convert(
            *(work / "model.onnx", work, file),
            precision="int8" if name == "ORT int8" else "fp32",
            options=dataclasses.replace(build.options, graph_optimization_level=level),
            feeds=[],
        )
    return made


def _built(folder: Path, checkpoint: Path, precision: str, options: Feed) -> Path:
    graph = folder / "staging" / "engine" / "model.onnx"
    if graph.is_file():
        return graph
    request: dict[str, Any] = {
        "schema": "tritonctl.build/1",
        "model": "m",
        "checkpoint": str(checkpoint.resolve()),
        "precision": precision,
        "limits": {"max_batch_size": max(BATCHES)},
        "options": {"pooling": "mean", **options},
    }
    (folder / "staging").mkdir(parents=True, exist_ok=True)
    (folder / "R.json").write_text(json.dumps(request), encoding="utf-8")
    files = ["--request", "../R.json", "--result", "../S.json"]
    subprocess.run([sys.executable, BUILD, *files], cwd=folder / "staging", check=True)
    return graph


def _measure(model: Model) -> None:
    """The fastest of several runs of each variant, taken in turn at each batch."""
    runs = {name: _ort(model.graphs[name]) for name in ORT}
    runs |= _openvino(model)
    reference = None
    for name, run in runs.items():
        made = run(_feed(model, max(BATCHES[:2])))
        reference = made if reference is None else reference
        model.cosine[name] = _cosine(reference, made)
    for batch in BATCHES:
        feed = _feed(model, batch)
        for _ in range(ROUNDS if batch < max(BATCHES) else max(2, ROUNDS // 2)):
            for name, run in runs.items():
                begin = time.perf_counter()
                run(feed)
                seconds = time.perf_counter() - begin
                key = (name, batch)
                model.fastest[key] = min(seconds, model.fastest.get(key, seconds))


def _ort(graph: Path) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    # Its threads would spin while the other's compute.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    names = {one.name for one in session.get_inputs()}
    return lambda feed: session.run(None, {n: a for n, a in feed.items() if n in names})[0]


def _openvino(model: Model) -> dict[str, Run]:
    import openvino

    core = openvino.Core()
    graph = model.graphs["OV"]
    inputs = [one.get_any_name() for one in core.read_model(graph).inputs]

    def compiled(read: Any, inside: str) -> Run:
        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": THREADS,
            "INFERENCE_PRECISION_HINT": inside,
        }
        request = core.compile_model(read, "CPU", settings).create_infer_request()
        return lambda feed: request.infer({name: feed[name] for name in inputs})[0].copy()

    return {
        "OV fp32": compiled(core.read_model(graph), "f32"),
        "OV bf16": compiled(core.read_model(graph), "bf16"),
        "OV int8": compiled(core.read_model(model.graphs["OV int8"]), "f32"),
    }


def _feed(model: Model, batch: int, seed: int = SEED) -> Feed:
    random = np.random.default_rng(seed)
    if not model.length:
        return {"pixel_values": random.standard_normal((batch, 3, 224, 224), dtype=np.float32)}
    ids = random.integers(1000, 20000, (batch, model.length))
    return {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "token_type_ids": np.zeros_like(ids),
    }


def _cosine(left: Any, right: Any) -> float:
    """The smallest between rows."""
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return float(((left * right).sum(1) / lengths).min())


def _text(models: Sequence[Model]) -> str:
    import onnxruntime
    import openvino

    names = (*ORT, *OPENVINO)
    versions = (
        f"OpenVINO {openvino.__version__.split('-')[0]}, ONNX Runtime {onnxruntime.__version__}"
    )
    lines = [
        HEAD.format(versions=versions, threads=THREADS, cpu=_cpu()),
        f"| model | batch | {' | '.join(names)} | fp32 | int8 |",
        f"|---|---|{'---|' * (len(names) + 2)}",
    ]
    for model in models:
        for batch in BATCHES:
            took = {name: model.fastest[name, batch] * 1000 for name in names}
            cells = " | ".join(f"{took[name]:.1f}" for name in names)
            pairs = (("ORT fp32", "OV fp32"), ("ORT int8", "OV int8"))
            ratios = " | ".join(f"{took[ort] / took[ov]:.2f}" for ort, ov in pairs)
            lines.append(f"| {model.name}, {model.item} | {batch} | {cells} | {ratios} |")
        cells = " | ".join(f"{model.cosine[name]:.5f}" for name in names)
        lines.append(f"| {model.name}, {model.item} | cosine | {cells} | | |")
    return "\n".join(lines) + "\n"


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "an unknown CPU"


if __name__ == "__main__":
    main()
