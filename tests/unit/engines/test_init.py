# SPDX-License-Identifier: Apache-2.0
"""`tritonctl init CHECKPOINT`: what it proposes, why, and what it refuses."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from tests import headers
from tests.onnx_headers import FLOAT, INT64, onnx_bytes
from tritonctl.cli import application
from tritonctl.engines.planning.plans import plan_model
from tritonctl.engines.proposals import precisions
from tritonctl.errors import UsageError
from tritonctl.project.file import load_profiles, load_project
from tritonctl.project.schema import Project

Invoke = Callable[..., Result]
SPELLER = Path(__file__).parents[3] / "examples" / "number-speller" / "checkpoint"
QWEN = headers.QWEN2_5_HALF_B | {"architectures": ["Qwen2ForCausalLM"], "eos_token_id": 2}
LLAMA_8B = headers.LLAMA_3_8B | {"architectures": ["LlamaForCausalLM"], "eos_token_id": 2}
LLAMA_70B = headers.LLAMA_3_70B | {"architectures": ["LlamaForCausalLM"], "eos_token_id": 2}
GIB = 1 << 30


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder on a machine with 24 GiB and no GPU, whatever this one has."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    for module in ("limits", "proposal"):
        monkeypatch.setattr(f"tritonctl.engines.proposals.{module}.host_memory", lambda: 24 * GIB)
    monkeypatch.setattr(
        "tritonctl.engines.proposals.installed_gpus.installed_gpus", lambda: ([], "")
    )
    return folder


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch) -> Iterator[Invoke]:
    """Run a command in this process."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}

    def run(*arguments: str, answers: str | None = None) -> Result:
        monkeypatch.setattr(sys, "argv", ["tritonctl", *arguments])
        return CliRunner().invoke(application(["init"]), list(arguments), input=answers)

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)


def decoder(folder: Path, config: dict[str, Any]) -> Path:
    """A text model of any size, on paper."""
    headers.stretch(headers.write_checkpoint(folder, config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SPELLER / name, folder / name)
    return folder


def encoder(folder: Path, **changes: Any) -> Path:
    """A BERT, on paper."""
    headers.write_encoder(folder, headers.BERT_BASE | changes)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SPELLER / name, folder / name)
    return headers.stretch(folder)


def sentences(folder: Path, *kinds: str, **pooling: Any) -> None:
    """What sentence-transformers writes beside an encoder."""
    modules = [
        {"type": f"sentence_transformers.models.{k}", "path": k if k != "Transformer" else ""}
        for k in kinds
    ]
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 256}', encoding="utf-8")
    (folder / "Pooling").mkdir()
    (folder / "Pooling" / "config.json").write_text(json.dumps(pooling), encoding="utf-8")


def graph(file: Path, *shape: int | str) -> Path:
    """An ONNX file with one input."""
    kind = INT64 if file.stem == "ids" else FLOAT
    weights: dict[str, Any] = {"weights": {"w": (FLOAT, (4, 4))}, "inside": {"w": bytes(64)}}
    file.write_bytes(onnx_bytes({"x": (kind, shape)}, {"y": (FLOAT, ("batch", 4))}, **weights))
    return file


def engine_of(project: Project) -> dict[str, Any]:
    """The engine of its one model, without what is left at its default."""
    (model,) = project.models.values()
    return model.engine.model_dump(exclude_unset=True, mode="json")


def test_a_text_model(invoke: Invoke, here: Path) -> None:
    """A CPU project, an H100 profile, a load test that P99 is found from, and why."""
    decoder(here / "qwen", QWEN)
    done = invoke("init", "qwen")
    assert done.exit_code == 0, done.stderr
    assert done.stdout == (
        "wrote tritonctl.yaml and prompts.txt; next: `tritonctl plan && tritonctl build`\n"
    )
    projects = load_profiles(here)
    assert engine_of(projects[None]) == {
        "builder": "openvino",
        "precision": "int8",
        "max_batch_size": 16,
        "max_seq_len": 2048,
    }
    (name,) = projects[None].models
    assert (name, projects[None].models[name].task) == ("qwen", "text_generation")
    load = projects[None].loadtests[name]
    assert load.count is not None
    assert load.count >= 1000  # half may be warm-up
    assert (here / load.requests[0].prompts).is_file()
    gpu = engine_of(projects["h100"])
    assert (gpu["builder"], gpu["precision"], gpu["kv_cache_dtype"]) == (
        "tensorrt_llm",
        "fp8",
        "fp8",
    )
    assert gpu["target"] == {"release": "26.07", "gpu": "H100"}
    assert projects["h100"].server.mode == "docker"
    said = done.stderr.splitlines()
    for word in ("task text_generation: ", "builder openvino: ", "precision int8: ", "limits 16 "):
        assert any(line.startswith(word) for line in said), word


def test_the_file_is_short(invoke: Invoke, here: Path) -> None:
    """What fits on a screen is read; what is left out has its default."""
    decoder(here / "qwen", QWEN)
    invoke("init", "qwen")
    lines = (here / "tritonctl.yaml").read_text(encoding="utf-8").splitlines()
    assert len(lines) < 40
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize(
    ("target", "config", "expected"),
    [
        ("h100", LLAMA_8B, {"precision": "fp8", "max_batch_size": 64, "max_seq_len": 8192}),
        ("A100-80", LLAMA_8B, {"precision": "bf16", "max_batch_size": 32}),
        ("h100", LLAMA_70B, {"precision": "fp8", "max_batch_size": 4}),
        ("a100-80", LLAMA_70B, {"precision": "bf16", "tp_size": 2}),
    ],
)
def test_limits_fit_the_gpu(
    invoke: Invoke, here: Path, target: str, config: dict[str, Any], expected: dict[str, Any]
) -> None:
    """Its memory and its number formats decide, and `plan` agrees."""
    decoder(here / "llama", config)
    done = invoke("init", "llama", "--target", target)
    assert done.exit_code == 0, done.stderr
    project = load_project(here)
    engine = engine_of(project)
    assert engine["builder"] == "tensorrt_llm"
    assert expected.items() <= engine.items()
    assert project.server.mode == "docker"
    assert not project.profiles
    (fit,) = plan_model(project, "llama").fits
    assert fit.fits
    assert fit.device.name == {"h100": "H100"}.get(target, "A100-80")


def test_a_cpu_without_the_memory(
    invoke: Invoke, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer bits, shorter sequences; where none will do, the GPU is next, and nothing is left."""
    decoder(here / "llama", LLAMA_8B)
    done = invoke("init", "llama")
    assert engine_of(load_project(here))["precision"] == "int8"
    assert "build: needs about " in done.stderr  # more memory than the engine
    monkeypatch.setattr("tritonctl.engines.proposals.limits.host_memory", lambda: 15 * GIB)
    assert invoke("init", "llama", "--force").exit_code == 0
    small = engine_of(load_project(here))
    assert (small["precision"], small["max_batch_size"]) == ("int4", 8)
    monkeypatch.setattr("tritonctl.engines.proposals.limits.host_memory", lambda: 4 * GIB)
    for file in ("tritonctl.yaml", "prompts.txt"):
        (here / file).unlink()
    done = invoke("init", "llama")
    assert done.exit_code == 3
    assert "LlamaForCausalLM does not fit this machine even for one request" in done.stderr
    assert "`tritonctl init llama --target h100`" in done.stderr
    assert [path.name for path in here.iterdir()] == ["llama"]


def test_a_bert_is_no_text_model(invoke: Invoke, here: Path) -> None:
    """Tensors in, tensors out, by ONNX Runtime; token ids that it has for the load test."""
    encoder(here / "bert")
    done = invoke("init", "bert")
    assert done.exit_code == 0, done.stderr
    projects = load_profiles(here)
    model = projects[None].models["bert"]
    assert (model.task, model.engine.builder, model.engine.precision) == (
        "tensors",
        "onnxruntime",
        "fp32",
    )
    assert model.slo.ttft_p99_ms is None
    gpu = projects["h100"].models["bert"]
    assert (gpu.engine.precision, gpu.serving.backend) == ("fp16", "onnxruntime")
    assert gpu.serving.instance_group[0].kind == "KIND_GPU"
    lines = (here / "inputs.jsonl").read_text(encoding="utf-8").splitlines()
    inputs = json.loads(lines[0])["inputs"]
    assert list(inputs) == ["input_ids", "attention_mask", "token_type_ids"]
    assert all(0 <= one < 30522 for one in inputs["input_ids"]["data"])
    assert inputs["input_ids"]["shape"] == [1, len(inputs["input_ids"]["data"])]
    assert "for texts set `task: embedding`" in done.stderr


def test_a_sentence_encoder(invoke: Invoke, here: Path) -> None:
    """Embeddings of texts, as long as its own files say; nothing repeats how it pools."""
    sentences(
        encoder(here / "bert"), "Transformer", "Pooling", "Normalize", pooling_mode_mean_tokens=True
    )
    done = invoke("init", "bert")
    assert done.exit_code == 0, done.stderr
    projects = load_profiles(here)
    assert projects[None].models["bert"].task == "embedding"
    engine = engine_of(projects[None])
    assert "options" not in engine
    assert engine["max_seq_len"] == 256
    assert projects["h100"].models["bert"].engine.builder == "tensorrt"
    load = projects[None].loadtests["bert"]
    assert (load.kind, str(load.requests[0].prompts)) == ("tensors", "prompts.txt")


@pytest.mark.parametrize(
    ("changes", "task"),
    [
        ({"id2label": {"0": "bad", "1": "good"}}, "classification"),
        ({"id2label": {"0": "LABEL_0"}}, "rerank"),
        ({"id2label": {"0": "x"}, "problem_type": "regression"}, "classification"),
        (
            {
                "id2label": {"0": "x"},
                "problem_type": "regression",
                "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity",
            },
            "rerank",
        ),
        ({"architectures": ["BertForTokenClassification"]}, "token_classification"),
    ],
)
def test_what_a_classifier_is_for(
    invoke: Invoke, here: Path, changes: dict[str, Any], task: str
) -> None:
    """Labels, the score of a pair, labels of a text's parts: config.json says which."""
    encoder(here / "bert", **{"architectures": ["BertForSequenceClassification"]} | changes)
    done = invoke("init", "bert")
    assert done.exit_code == 0, done.stderr
    assert load_project(here).models["bert"].task == task
    assert f"task {task}: " in done.stderr
    file = "inputs.jsonl" if task == "rerank" else "prompts.txt"
    lines = (here / file).read_text(encoding="utf-8").splitlines()
    assert max(map(len, lines)) > 5 * min(map(len, lines))  # short texts and long ones
    assert task != "rerank" or list(json.loads(lines[0])) == ["query", "text_input"]


@pytest.mark.parametrize(
    ("kinds", "pooling", "problem"),
    [
        (("Transformer", "Pooling", "Conv"), {"pooling_mode": "cls"}, "Conv"),
        (("Transformer", "Pooling"), {"pooling_mode": "median"}, "median"),
    ],
)
def test_modules_are_never_guessed(
    invoke: Invoke, here: Path, kinds: tuple[str, ...], pooling: dict[str, Any], problem: str
) -> None:
    """A module that no builder makes would change the vectors without an error."""
    sentences(encoder(here / "bert"), *kinds, **pooling)
    done = invoke("init", "bert")
    assert done.exit_code == 5
    assert problem in done.stderr
    assert not (here / "tritonctl.yaml").exists()


def test_an_onnx_file(invoke: Invoke, here: Path) -> None:
    """Served as it is on a CPU; a TensorRT plan with its shapes on a GPU."""
    graph(here / "ids.onnx", "batch", "length")
    assert invoke("init", "ids.onnx").exit_code == 0
    engine = engine_of(load_project(here))
    assert (engine["builder"], engine["max_seq_len"]) == ("onnxruntime", 128)
    row = json.loads((here / "inputs.jsonl").read_text(encoding="utf-8"))["inputs"]["x"]
    assert row == {"shape": [1, 32], "datatype": "INT64", "data": [1] * 32}
    done = invoke("init", "ids.onnx", "--target", "h100", "--force")
    assert done.exit_code == 0, done.stderr
    engine = engine_of(load_project(here))
    assert (engine["builder"], engine["precision"]) == ("tensorrt", "fp16")
    assert engine["options"]["profiles"] == {
        "x": {"min": [1, 1], "opt": [16, 64], "max": [32, 128]}
    }


@pytest.mark.parametrize(
    ("shape", "request_shape", "reason"),
    [
        ((1, 3), [1, 3], "the first dimension of x is fixed at 1"),
        ((3,), [3], "the first dimension of x is fixed at 3"),
        ((), [1], "x is a scalar"),
    ],
)
def test_a_graph_without_a_batch_dimension(
    invoke: Invoke, here: Path, shape: tuple[int, ...], request_shape: list[int], reason: str
) -> None:
    """It is served with its own shapes, one request a run, on a CPU and as a plan."""
    graph(here / "g.onnx", *shape)
    for options in ((), ("--target", "h100")):
        done = invoke("init", "g.onnx", "--force", *options)
        assert done.exit_code == 0, done.stderr
        assert f"no batches: {reason}, so each request is a run" in done.stderr
        assert engine_of(load_project(here))["max_batch_size"] == 0
        row = json.loads((here / "inputs.jsonl").read_text(encoding="utf-8"))["inputs"]["x"]
        assert row["shape"] == request_shape


def test_bf16_of_a_task_is_openvino_s(invoke: Invoke, here: Path) -> None:
    """ONNX Runtime has none on a CPU; a CPU without bf16 gets an error that says so."""
    sentences(encoder(here / "bert"), "Transformer", "Pooling", pooling_mode_mean_tokens=True)
    done = invoke("init", "bert", "--precision", "bf16")
    if "_bf16" in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
        assert done.exit_code == 0, done.stderr
        assert engine_of(load_project(here))["builder"] == "openvino"
    else:
        assert "precision bf16 needs a CPU with AVX512-BF16 or AMX" in done.stderr


@pytest.mark.parametrize("flags", [{"avx2", "avx512_bf16"}, {"avx2"}, set()])
def test_a_cpu_with_bf16_is_told_of_it(
    invoke: Invoke, here: Path, monkeypatch: pytest.MonkeyPatch, flags: set[str]
) -> None:
    """The default stays as exact as the checkpoint; a graph of one's own has no such choice."""
    monkeypatch.setattr(precisions, "cpu_flags", lambda: frozenset(flags))
    sentences(encoder(here / "bert"), "Transformer", "Pooling", pooling_mode_mean_tokens=True)
    graph(here / "ids.onnx", "batch", 8)
    told = "`--precision bf16` makes all-MiniLM-L6-v2 1.8 times as fast"
    done = invoke("init", "bert")
    assert engine_of(load_project(here))["precision"] == "fp32"
    assert (told in done.stderr) == ("avx512_bf16" in flags)
    assert told not in invoke("init", "bert", "--force", "--precision", "fp32").stderr
    assert told not in invoke("init", "ids.onnx", "--force").stderr


@pytest.mark.parametrize(("precision", "builder"), [("fp32", "onnxruntime"), ("int8", "openvino")])
def test_int8_of_a_task_is_openvino_s(
    invoke: Invoke, here: Path, precision: str, builder: str
) -> None:
    """Whose answers are nearer; `plan` says so of the other builder's, on a CPU."""
    sentences(encoder(here / "bert"), "Transformer", "Pooling", pooling_mode_mean_tokens=True)
    assert invoke("init", "bert", "--precision", precision).exit_code == 0
    assert engine_of(load_project(here))["builder"] == builder

    def notes(*settings: str) -> list[str]:
        sets = [f"models.bert.{setting}" for setting in settings]
        return list(plan_model(load_project(here, overrides=sets), "bert").notes)

    other = "engine.builder=onnxruntime"
    said = notes(other)
    assert len(said) == (precision == "int8")
    assert all(note.startswith("`builder: openvino` is better for int8 on CPUs: ") for note in said)
    assert notes(other, "serving.instance_group=[{kind: KIND_GPU}]") == []


@pytest.mark.parametrize("precision", ["fp16", "int8", "fp32"])
def test_an_onnx_file_on_a_gpu_that_tensorrt_llm_does_not_know(
    invoke: Invoke, here: Path, precision: str
) -> None:
    """A plan is TensorRT's: its GPUs and its precisions count."""
    graph(here / "ids.onnx", "batch", "length")
    done = invoke("init", "ids.onnx", "--target", "t4", "--precision", precision)
    assert done.exit_code == 0, done.stderr
    engine = engine_of(load_project(here))
    assert (engine["builder"], engine["precision"]) == ("tensorrt", precision)
    assert engine["target"]["gpu"] == "T4"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--target", "v100-32"), "TensorRT does not support V100-32"),
        (("--target", "t4", "--precision", "fp8"), "FP8 arithmetic came with Ada"),
    ],
)
def test_an_onnx_file_on_a_gpu_that_tensorrt_does_not_know(
    invoke: Invoke, here: Path, arguments: tuple[str, ...], problem: str
) -> None:
    """Refused before the file is written."""
    graph(here / "ids.onnx", "batch", "length")
    done = invoke("init", "ids.onnx", *arguments)
    assert done.exit_code == 2
    assert problem in done.stderr
    assert not (here / "tritonctl.yaml").exists()


def test_images_have_their_usual_size(invoke: Invoke, here: Path) -> None:
    """Height and width are no tokens."""
    graph(here / "image.onnx", "batch", 3, "height", "width")
    assert invoke("init", "image.onnx").exit_code == 0
    engine = engine_of(load_project(here))
    assert engine["options"] == {"dimensions": {"height": 224, "width": 224}}
    assert "max_seq_len" not in engine
    assert invoke("init", "image.onnx", "--target", "h100", "--force").exit_code == 0
    profile = engine_of(load_project(here))["options"]["profiles"]["x"]
    assert (profile["min"], profile["max"]) == ([1, 3, 224, 224], [32, 3, 224, 224])


def empty(folder: Path) -> Path:
    """A folder that holds nothing."""
    folder.mkdir()
    return folder


def with_file(folder: Path, *names: str, config: str = "") -> Path:
    """A folder that holds these, empty."""
    folder.mkdir()
    for name in names:
        (folder / name).touch()
    if config:
        (folder / "config.json").write_text(config, encoding="utf-8")
    return folder


def lacking(folder: Path, name: str, *others: str) -> Path:
    """A text model without one of its files, and with others."""
    decoder(folder, QWEN)
    (folder / name).unlink()
    for other in others:
        (folder / other).touch()
    return folder


LLAMA_CLASS = '{"architectures": ["LlamaForCausalLM"]}'
REFUSED: dict[str, tuple[Callable[[Path], Path], str, str]] = {
    "empty": (empty, "m is empty", "`tritonctl init -o m`"),
    "other": (lambda f: with_file(f, "notes.txt"), "holds notes.txt and no model", "OWNER/NAME"),
    "gguf": (
        lambda f: with_file(f, "q4.gguf"),
        "q4.gguf is in llama.cpp's format GGUF",
        "*.safetensors",
    ),
    "pickles": (
        lambda f: with_file(f, "pytorch_model.bin", config=LLAMA_CLASS),
        "Python pickles, which can run any code",
        'LlamaForCausalLM.from_pretrained("m").save_pretrained("m")',
    ),
    "no weights": (
        lambda f: with_file(f, config=LLAMA_CLASS),
        "neither model.safetensors nor model.safetensors.index.json",
        "again",
    ),
    "one shard": (
        lambda f: with_file(f, "model-00001-of-00002.safetensors", config=LLAMA_CLASS),
        "the model is incomplete",
        "download the whole folder again",
    ),
    "adapter": (
        lambda f: with_file(f, "adapter_config.json", "adapter_model.safetensors"),
        "m is a LoRA adapter",
        "start from its base model",
    ),
    "no tokenizer": (
        lambda f: lacking(f, "tokenizer.json"),
        "m has no tokenizer.json: prompts",
        "download the whole folder again",
    ),
    "slow tokenizer": (
        lambda f: lacking(f, "tokenizer.json", "tokenizer.model"),
        "no tokenizer.json, only tokenizer.model",
        'AutoTokenizer.from_pretrained("m").save_pretrained("m")',
    ),
    "no config": (
        lambda f: lacking(f, "config.json"),
        "m has weights but no config.json",
        "the whole folder",
    ),
    "unknown": (
        lambda f: decoder(f, QWEN | {"architectures": ["RwkvForCausalLM"]}),
        "no builder exports RwkvForCausalLM",
        "`tritonctl init MODEL.onnx`",
    ),
    "refused": (
        lambda f: decoder(f, QWEN | {"architectures": ["Gemma2ForCausalLM"]}),
        "attn_logit_softcapping",
        "`tritonctl init MODEL.onnx`",
    ),
    "quantised": (
        lambda f: decoder(f, QWEN | {"quantization_config": {"quant_method": "gptq", "bits": 4}}),
        "m is already quantised, and builders need unquantised weights",
        "name the original checkpoint with 16-bit or 32-bit weights",
    ),
    "unnamed": (
        lambda f: decoder(f, {k: v for k, v in QWEN.items() if k != "architectures"}),
        "has no `architectures`",
        "add the model's class",
    ),
    "other graph": (
        lambda f: graph(with_file(f) / "encoder.onnx", "batch", 3).parent,
        "m has ONNX files, but no model.onnx",
        "`tritonctl init m/encoder.onnx`",
    ),
    "no graph": (lambda f: with_file(f, "model.onnx"), "cannot be read as ONNX", "export the file"),
    "above": (
        lambda f: decoder(f / "inner", QWEN).parent,
        "m contains models, but is not one",
        "`tritonctl init m/inner`",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_served(invoke: Invoke, here: Path, case: str) -> None:
    """It is said what is there, and what to type; nothing is written."""
    make, problem, remedy = REFUSED[case]
    make(here / "m")
    done = invoke("init", "m")
    assert done.exit_code == 3
    assert problem in done.stderr
    assert remedy in done.stderr.partition("try:")[2]
    assert done.stdout == ""
    assert [path.name for path in here.iterdir()] == ["m"]


def test_what_the_builder_refuses(invoke: Invoke, here: Path) -> None:
    """In its words, and without the prompts of a project that there is not."""
    decoder(here / "m", {k: v for k, v in QWEN.items() if k != "eos_token_id"})
    done = invoke("init", "m", "-o", "p")
    assert done.exit_code == 5
    assert "eos_token_id" in done.stderr
    assert not list(here.glob("p/*"))


@pytest.mark.parametrize(
    ("options", "code", "problem"),
    [
        (["--target", "h1000"], 2, "unknown target `h1000`"),
        (["--precision", "fp8"], 2, "has no precision `fp8`"),
        (["--target", "t4"], 2, "TensorRT-LLM does not support T4"),
        (["--name", "my model"], 2, "cannot be a Triton model's name"),
    ],
)
def test_wishes_that_cannot_be_met(
    invoke: Invoke, here: Path, options: list[str], code: int, problem: str
) -> None:
    """Before anything is written."""
    decoder(here / "m", QWEN)
    done = invoke("init", "m", *options)
    assert done.exit_code == code
    assert problem in done.stderr
    assert not (here / "tritonctl.yaml").exists()


def test_the_user_s_own_prompts_stay(invoke: Invoke, here: Path) -> None:
    """--force is about the project file."""
    decoder(here / "m", QWEN)
    (here / "prompts.txt").write_text("mine\n", encoding="utf-8")
    assert invoke("init", "m").stdout.startswith("wrote tritonctl.yaml; next: ")
    assert invoke("init", "m").exit_code == 2
    assert invoke("init", "m", "--force").exit_code == 0
    assert (here / "prompts.txt").read_text(encoding="utf-8") == "mine\n"


def test_where_the_project_goes(invoke: Invoke, here: Path) -> None:
    """-o; the checkpoint is named from there, and never holds the project itself."""
    decoder(here / "checkpoint", QWEN)
    done = invoke("init", "checkpoint", "-o", "a b/c", "--name", "chat", "--json")
    record = json.loads(done.stdout)
    assert record["file"] == "a b/c/tritonctl.yaml"
    assert record["next"].startswith("tritonctl plan --project 'a b/c' && ")
    project = load_project(here / "a b" / "c")
    assert project.models["chat"].checkpoint == Path("../../checkpoint")
    done = invoke("init", ".", "-o", "checkpoint")
    assert done.exit_code == 3
    done = invoke("init", "checkpoint", "-o", "checkpoint")
    assert "would lie inside the checkpoint" in done.stderr
    assert not (here / "checkpoint" / "tritonctl.yaml").exists()


def test_names(invoke: Invoke, here: Path) -> None:
    """From the folder; `checkpoint` says nothing, and Triton takes no blanks."""
    decoder(here / "My model (v2)" / "checkpoint", QWEN)
    assert invoke("init", "My model (v2)/checkpoint").exit_code == 0
    assert list(load_project(here).models) == ["My-model-v2"]


def test_a_commented_example(invoke: Invoke, here: Path) -> None:
    """Without a checkpoint, in a folder that is not there yet."""
    done = invoke("init", "-o", "new")
    assert done.exit_code == 0
    assert "wrote new/tritonctl.yaml, a commented example" in done.stdout
    assert "# slo:" in (here / "new" / "tritonctl.yaml").read_text(encoding="utf-8")


def test_a_model_of_the_hub(invoke: Invoke, here: Path, tmp_path: Path) -> None:
    """Decided by its files once they are here, named by its id; before that nothing is written."""
    done = invoke("init", "Org/Tiny-BERT", "--revision", "v1", "-o", "p")
    assert done.exit_code == 3
    assert "using Org/Tiny-BERT of the Hugging Face Hub" in done.stderr
    assert "has not been fetched; a proposal needs its config.json" in done.stderr
    assert "run `tritonctl fetch Org/Tiny-BERT@v1`, then this command again" in done.stderr
    assert not list(here.iterdir())
    folder = tmp_path / "hub" / "models--Org--Tiny-BERT"
    encoder(folder / "snapshots" / ("a" * 40))
    (folder / "refs").mkdir()
    (folder / "refs" / "v1").write_text("a" * 40, encoding="utf-8")
    done = invoke("init", "Org/Tiny-BERT", "--revision", "v1", "-o", "p")
    assert done.exit_code == 0, done.stderr
    model = load_project(here / "p").models["Tiny-BERT"]
    assert (model.checkpoint, model.revision) == (Path("Org/Tiny-BERT"), "v1")
    assert model.engine.builder == "onnxruntime"


def test_a_folder_has_no_revision(invoke: Invoke, here: Path) -> None:
    """It would be written down as if it meant something."""
    decoder(here / "m", QWEN)
    done = invoke("init", "m", "--revision", "v1", "-o", "p")
    assert done.exit_code == 3
    assert "m is a local checkpoint, and only hub models have a revision (v1)" in done.stderr
    assert not (here / "p").exists()


def test_questions(invoke: Invoke, here: Path) -> None:
    """An empty line is the default in brackets, and so is the end of the input."""
    decoder(here / "qwen", QWEN)
    done = invoke("init", "--interactive", answers="qwen\n\nh100\nbf16\np\n")
    assert done.exit_code == 0, done.stderr
    project = load_project(here / "p")
    assert list(project.models) == ["qwen"]
    engine = engine_of(project)
    assert (engine["builder"], engine["precision"]) == ("tensorrt_llm", "bf16")
    assert "Name of the model [qwen]: " in done.stderr
    done = invoke("init", "qwen", "-i", answers="")
    assert done.exit_code == 0, done.stderr
    assert engine_of(load_project(here))["builder"] == "openvino"


def test_reasons_as_json(invoke: Invoke, here: Path) -> None:
    """For scripts; --quiet leaves them out."""
    decoder(here / "m", QWEN)
    record = json.loads(invoke("init", "m", "--json", "--quiet").stdout)
    assert record["written"] == ["tritonctl.yaml", "prompts.txt"]
    assert any(reason.startswith("precision int8: ") for reason in record["reasons"])


def test_the_text_means_the_data(invoke: Invoke, here: Path) -> None:
    """Whatever the folder is called."""
    decoder(here / "a: {b} # 'c'", QWEN)
    assert invoke("init", "a: {b} # 'c'").exit_code == 0
    data = yaml.safe_load((here / "tritonctl.yaml").read_text(encoding="utf-8"))
    (model,) = data["models"].values()
    assert model["checkpoint"] == "a: {b} # 'c'"


def test_no_project_where_nothing_is_planned(here: Path) -> None:
    """The library says the same as the command."""
    from tritonctl.engines.proposals.recognition import recognise

    with pytest.raises(UsageError, match="none does not exist"):
        recognise(here / "none")


@pytest.mark.parametrize("name", ["none.onnx", "none.onx", "chekpoint", "project-1.2"])
def test_a_checkpoint_that_is_not_there(invoke: Invoke, here: Path, name: str) -> None:
    """Exit code 2; a slip makes no folder of that name."""
    done = invoke("init", name)
    assert done.exit_code == 2
    assert f"{name} does not exist" in done.stderr
    assert not list(here.iterdir())
