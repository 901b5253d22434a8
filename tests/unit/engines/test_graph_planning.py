# SPDX-License-Identifier: Apache-2.0
"""`tritonctl plan` of encoders and ONNX files: onnxruntime and tensorrt."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import headers
from tests.onnx_headers import FLOAT, FLOAT16, INT8, INT64, STRING, onnx_bytes
from tritonctl.engines.estimates.graphs import ActivationDemand, GraphRoom
from tritonctl.engines.estimates.onnx_weights import read_weights
from tritonctl.engines.planning import plans
from tritonctl.engines.planning.plans import plan_model
from tritonctl.engines.planning.records import ModelPlan
from tritonctl.errors import ConfigurationError

if TYPE_CHECKING:
    from tests.unit.conftest import Cli, Sandbox

GIB = 1 << 30
# As the model's own page gives it.
BERT_BASE_PARAMETERS = 109_482_240
POOLER = 768 * 768


@pytest.fixture
def bert(sandbox: Sandbox) -> Sandbox:
    """A project that serves BERT base, saved with the head it was trained with."""
    headers.write_encoder(
        sandbox.root / "bert",
        headers.BERT_BASE,
        cls__predictions__decoder__weight=(30522, 768),
        cls__predictions__bias=(30522,),
    )
    sandbox.data["models"]["speller"] |= {"task": "tensors", "checkpoint": "bert"}
    sandbox.engine.update(builder="onnxruntime", precision="fp32", max_batch_size=8, options={})
    sandbox.engine["max_seq_len"] = 128
    return sandbox


@pytest.fixture
def graph(bert: Sandbox) -> Sandbox:
    """A project that serves an ONNX file: a table, a product, a Gemm, a convolution."""
    file = onnx_bytes(
        {"ids": (INT64, ["batch", "length"]), "text": (STRING, ["batch", 1])},
        {"y": (FLOAT, ["batch", "length", 64])},
        nodes=[
            ("Gather", ["table", "ids"], ["rows"]),
            ("Transpose", ["product"], ["turned"]),
            ("MatMul", ["rows", "turned"], ["z"]),
            ("Gemm", ["z", "dense", "bias"], ["v"]),
            ("Tanh", ["v"], ["u"]),
            ("Gemm", ["u", "last"], ["y"]),
            ("Conv", ["y", "filter"], ["w"]),
        ],
        weights={
            "table": (FLOAT, (1000, 64)),
            "product": (FLOAT, (256, 64)),
            "dense": (FLOAT, (64, 32)),
            "last": (FLOAT, (5, 64)),
            "bias": (FLOAT, (64,)),
            "filter": (FLOAT, (8, 4, 3, 3)),
            "half": (FLOAT16, (100, 10)),
            "axes": (INT64, (4,)),
            "packed": (INT8, (16,)),
        },
        inside={"packed": b"q" * 16},
    )
    (bert.root / "graph").mkdir()
    (bert.root / "graph" / "model.onnx").write_bytes(file)
    bert.data["models"]["speller"]["checkpoint"] = "graph"
    return bert


def _plan(sandbox: Sandbox, *gpus: str, memory: int | None = None, **engine: object) -> ModelPlan:
    sandbox.engine.update(engine)
    return plan_model(sandbox.load(), "speller", gpus, memory)


def test_sizes_of_an_encoder(bert: Sandbox) -> None:
    """Weights as wide as the precision says, however the checkpoint has them; no KV cache."""
    plan = _plan(bert)
    assert plan.parameters == BERT_BASE_PARAMETERS
    assert plan.weights == 4 * BERT_BASE_PARAMETERS
    assert plan.files > plan.weights
    assert plan.kv_bytes_per_token == 0
    assert [fit.device.name for fit in plan.fits] == ["host"]
    assert _plan(bert, precision="fp16").weights == 2 * BERT_BASE_PARAMETERS


def test_what_integers_are_made_of(bert: Sandbox) -> None:
    """Dynamic: products and tables. Static: what makes one vector per text, too."""
    dynamic = _plan(bert, precision="int8").weights
    linear = 12 * (4 * 768 * 768 + 2 * 768 * 3072)
    rows = 12 * (5 * 768 + 3072)
    tables = (30522 + 512 + 2) * 768
    rest = BERT_BASE_PARAMETERS - linear - tables
    assert dynamic == linear + 5 * rows + 640 * 6 * 12 + tables + 4 * rest
    static = _plan(bert, options={"calibration": "static"}).weights
    assert dynamic - static == 3 * POOLER - 5 * 768
    per_tensor = _plan(bert, options={"per_channel": False}).weights
    assert dynamic - per_tensor == 5 * rows


def test_a_pooling_of_ones_own(bert: Sandbox) -> None:
    """Vectors that the graph makes leave the checkpoint's pooler unused, and answer less."""
    whole, pooled = _plan(bert), _plan(bert, options={"pooling": "mean"})
    assert (whole.parameters, pooled.parameters) == (
        BERT_BASE_PARAMETERS,
        BERT_BASE_PARAMETERS - POOLER - 768,
    )
    assert whole.activations > pooled.activations


def test_memory_of_an_encoder(bert: Sandbox) -> None:
    """Weights and activations of the batch, for each instance."""
    bert.serving["parallel_runs"] = 1
    one = _plan(bert, memory=8 * GIB)
    (fit,) = one.fits
    assert (fit.batch, fit.length, fit.fits) == (8, 128, True)
    assert fit.needed > 1.6 * one.weights + one.activations
    assert fit.longest == 512  # what it was trained for
    bert.serving["instance_group"] = [{"kind": "KIND_CPU", "count": 2}]
    (two,) = _plan(bert, memory=8 * GIB).fits
    assert two.needed == pytest.approx(2 * fit.needed, abs=2)
    assert two.largest_batch < fit.largest_batch / 2
    assert not _plan(bert, memory=GIB).fits[0].fits


def test_memory_of_several_runs_at_a_time(bert: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has activations of its own: one for each core, no more than the project says."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)))
    work = _plan(bert).activations

    def needed(**serving: object) -> float:
        bert.data["models"]["speller"]["serving"] = serving
        (fit,) = _plan(bert, memory=8 * GIB).fits
        return fit.needed

    one = needed(parallel_runs=1)
    assert needed() == pytest.approx(one + 3 * work, abs=4)
    assert needed(parallel_runs=3) == pytest.approx(one + 2 * work, abs=4)
    assert needed(session={"intra_op_num_threads": 2}) == one
    two = [{"kind": "KIND_CPU", "count": 2}]
    assert needed(instance_group=two) == pytest.approx(2 * (one + work), abs=4)


def test_texts_of_a_task_take_less_than_the_largest_batch(
    bert: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their runs are bounded by tokens: several count where the project sets the bound."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)))
    bert.data["models"]["speller"] |= {"task": "embedding"}
    bert.engine["options"] = {"pooling": "mean"}
    (unbounded,) = _plan(bert, memory=8 * GIB).fits
    bounded = _plan(bert, memory=8 * GIB, max_num_tokens=2 * 128)
    assert bounded.fits[0].needed == pytest.approx(unbounded.needed, abs=4)  # 4 * 2 rows are 8


@pytest.mark.parametrize(
    ("task", "runtime", "said"),
    [
        (
            "embedding",
            {"padding": {"run_tokens": 9.8}},
            ["best batch: a run of 236 tokens or more spends 96% of its time on texts"],
        ),
        ("embedding", {"padding": {"run_tokens": 0.0}}, []),
        ("embedding", {"padding": None}, []),
        ("embedding", {}, []),
        ("tensors", {"padding": {"run_tokens": 9.8}}, []),
    ],
)
def test_the_best_batch_of_texts(
    bert: Sandbox,
    monkeypatch: pytest.MonkeyPatch,
    task: str,
    runtime: dict[str, Any],
    said: list[str],
) -> None:
    """Where the build has measured what a run costs besides: 236 of 245.8 tokens are 96 %."""
    built = SimpleNamespace(files=(), runtime=runtime)
    monkeypatch.setattr(plans, "_build_result", lambda *_: built)
    bert.data["models"]["speller"] |= {"task": task}
    bert.engine["options"] = {"pooling": "mean"}
    assert [note.partition(";")[0] for note in _plan(bert, memory=8 * GIB).notes] == said


def test_attention_grows_with_the_square(bert: Sandbox) -> None:
    """Four times the length takes more than four times the memory."""
    short, long = _plan(bert), _plan(bert, max_seq_len=512)
    assert long.activations > 5 * short.activations
    assert _plan(bert, max_seq_len=None).fits[0].length == 512


def test_positions_that_are_never_used(bert: Sandbox) -> None:
    """RoBERTa counts from the padding id on: 514 rows for 512 tokens."""
    config = headers.BERT_BASE | {"architectures": ["RobertaModel"], "pad_token_id": 1}
    headers.write_encoder(bert.root / "roberta", config | {"max_position_embeddings": 514})
    bert.data["models"]["speller"]["checkpoint"] = "roberta"
    assert _plan(bert, max_seq_len=None).fits[0].length == 512


def test_on_gpus(bert: Sandbox) -> None:
    """Where instance_group says so; the graph is for no GPU in particular."""
    bert.serving["instance_group"] = [{"kind": "KIND_GPU", "count": 1}]
    fits = {fit.device.name: fit for fit in _plan(bert).fits}
    assert fits["H100"].fits
    assert fits["V100-32"].refused is None
    assert fits["H100"].usable < fits["H100"].device.memory


POSITIVE = st.floats(1, 1e6)


@given(POSITIVE, POSITIVE, POSITIVE, st.floats(1e6, 1e12), st.integers(1, 64), st.integers(1, 512))
def test_the_largest_fits_and_no_larger(
    each: float, token: float, pair: float, usable: float, batch: int, length: int
) -> None:
    """Batch and length are the last that fit, of a graph with attention and of one without."""
    for work in (ActivationDemand(each, token, pair), ActivationDemand(each, token, 0)):
        room = GraphRoom(usable, usable / 4, work)
        most = room.largest_batch(length)
        assert most == 0 or room.required_bytes(most, length) <= usable * (1 + 1e-9)
        assert room.required_bytes(most + 1, length) >= usable * (1 - 1e-9)
        longest = room.max_length(batch)
        assert longest == 0 or room.required_bytes(batch, longest) <= usable * (1 + 1e-6)
        assert room.required_bytes(batch, longest + 1) >= usable * (1 - 1e-6)


def test_what_is_read_of_a_graph(graph: Sandbox) -> None:
    """What each weight is for, through what passes it on; bytes of the rest."""
    found = read_weights(graph.root / "graph" / "model.onnx")
    assert {tensor.name: (tensor.kind, tensor.shape) for tensor in found.tensors} == {
        "table": ("embedding", (1000, 64)),
        "product": ("linear", (64, 256)),
        "dense": ("head", (64, 32)),
        "last": ("linear", (64, 5)),
        "bias": ("other", (64,)),
        "filter": ("head", (8, 36)),
        "half": ("other", (100, 10)),
    }
    assert {tensor.name: tensor.stored_bytes for tensor in found.fixed} == {
        "axes": 32,
        "packed": 16,
    }
    assert found.graph_bytes == found.file.stat().st_size - 16


def test_sizes_of_a_graph(graph: Sandbox) -> None:
    """Types that the file has are never widened; whole numbers stay."""
    elements = {
        "table": 64_000,
        "product": 16_384,
        "dense": 2048,
        "last": 320,
        "bias": 64,
        "filter": 288,
    }
    kept = 2 * 1000 + 32 + 16
    assert _plan(graph).weights == 4 * sum(elements.values()) + kept
    assert _plan(graph, precision="fp16").weights == 2 * sum(elements.values()) + kept
    products = 16_384 + 320 + 5 * (64 + 64) + 2 * 640
    dynamic = 64_000 + products + 4 * (2048 + 64 + 288) + kept
    assert _plan(graph, precision="int8").weights == dynamic
    static = dynamic - 3 * (2048 + 288) + 5 * (64 + 8)
    assert _plan(graph, options={"calibration": "static"}).weights == static


def test_lengths_of_a_graph(graph: Sandbox) -> None:
    """From the project, from options by name, or from profiles; else there is no plan."""
    assert _plan(graph).fits[0].length == 128
    assert (
        _plan(graph, max_seq_len=None, options={"dimensions": {"length": 9}}).fits[0].length is None
    )
    with pytest.raises(ConfigurationError, match=r"the size of ids\[1\] in .* is unknown"):
        _plan(graph, options={})
    profile = {"ids": {"min": [1, 1], "opt": [8, 64], "max": [8, 384]}}
    plan = _plan(graph, memory=16 * GIB, builder="tensorrt", options={"profiles": profile})
    assert plan.fits[0].length == 384


def test_graphs_of_fixed_sizes(cli: Cli, graph: Sandbox) -> None:
    """An image has no length: what is planned is the batch."""
    file = onnx_bytes(
        {"x": (FLOAT, ["batch", 3, 224, 224])},
        {"y": (FLOAT, ["batch", 10])},
        between={"z": (FLOAT, ["batch", 64, 112, 112])},
    )
    (graph.root / "graph" / "model.onnx").write_bytes(file)
    plan = _plan(graph, max_seq_len=None)
    (fit,) = plan.fits
    assert (fit.length, fit.longest) == (None, None)
    assert fit.largest_batch > 0
    assert plan.activations > 8 * 4 * 2 * 64 * 112 * 112
    graph.write()
    line = cli("plan", "--device-memory", "8GiB").stdout.splitlines()[-1].split()
    assert line[-2] == "yes"
    assert line[-1].isdecimal()


def test_plans_of_tensorrt(graph: Sandbox) -> None:
    """Weights by precision, scratch as allowed; FP8 not on GPUs without it."""
    whole = _plan(graph, "H100", "A100-80", builder="tensorrt")
    half = _plan(graph, "H100", precision="fp16")
    assert half.weights < whole.weights
    assert whole.fits[0].needed > 4 * GIB
    less = _plan(graph, "H100", precision="fp16", options={"workspace_mib": 64})
    assert half.fits[0].needed - less.fits[0].needed == 4 * GIB - (64 << 20)
    fits = _plan(graph, "H100", "A100-80", precision="fp8").fits
    assert fits[0].refused is None
    assert "FP8" in str(fits[1].refused)


REFUSALS: list[tuple[Callable[[Sandbox], object], str]] = [
    (lambda s: (s.root / "graph" / "model.onnx").unlink(), "no model.safetensors or model.onnx"),
    (lambda s: _use(s, "bert", builder="tensorrt"), "has no model.onnx"),
    (lambda s: _write(s, b"\x3a\xff\x01"), "it is cut off"),
    (lambda s: _write(s, b""), "it has no graph"),
    (lambda s: _write(s, b"version https://git-lfs.github.com/spec/v1\n"), "a Git LFS pointer"),
    (lambda s: _use(s, "llama"), "does not export it"),
]


def _write(sandbox: Sandbox, content: bytes) -> None:
    (sandbox.root / "graph" / "model.onnx").write_bytes(content)


def _use(sandbox: Sandbox, checkpoint: str, **engine: str) -> None:
    sandbox.engine.update(engine)
    changes: dict[str, dict[str, object]] = {
        "llama": {"architectures": ["LlamaForCausalLM"]},
    }
    if checkpoint in changes:
        headers.write_encoder(sandbox.root / checkpoint, headers.BERT_BASE | changes[checkpoint])
    sandbox.data["models"]["speller"]["checkpoint"] = checkpoint


@pytest.mark.parametrize(("change", "problem"), REFUSALS)
def test_refusals(graph: Sandbox, change: Callable[[Sandbox], object], problem: str) -> None:
    """Named with the file, and with what to do."""
    change(graph)
    with pytest.raises(ConfigurationError) as caught:
        _plan(graph)
    assert problem in caught.value.problem


def test_a_task_on_openvino(bert: Sandbox) -> None:
    """Without a KV cache, unlike its text generation: weights as ONNX Runtime has them."""
    bert.data["models"]["speller"] |= {"task": "embedding"}
    reference = _plan(bert)
    plans = {one: _plan(bert, builder="openvino", precision=one) for one in ("fp32", "bf16")}
    for plan in plans.values():
        assert plan.weights == reference.weights
        assert plan.kv_bytes_per_token == 0
        assert plan.activations
    assert plans["bf16"].activations < plans["fp32"].activations
    small = _plan(bert, precision="int8")
    assert small.parameters
    assert 1 <= small.weights / small.parameters < 1.02
