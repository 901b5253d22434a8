# SPDX-License-Identifier: Apache-2.0
"""ONNX graphs through a real Triton: a small given one and a real encoder, and their originals."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tokenizers import Tokenizer
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.engine_cache import build_cached
from tests.servers import ON_FREE_PORTS
from tritonctl.engines.builds.engine import built_engine
from tritonctl.errors import RequestRejectedError, ServerBusyError
from tritonctl.host.progress import Silent
from tritonctl.project.file import load_project
from tritonctl.project.schema import Project
from tritonctl.protocol.client import TritonClient
from tritonctl.repository.publish import render
from tritonctl.runtimes.lifecycle import start, stop
from tritonctl.runtimes.server_state import Server

pytestmark = [pytest.mark.engine, pytest.mark.server]

TESTS = Path(__file__).resolve().parents[1]
MOST_ROWS = 8
PRECISIONS = ("fp32", "fp16", "int8")
# Of these a request is a run.
WITHOUT_BATCH = ("every_shape", "scalars", "distances", "waveform", "fixed_batch")
GIVEN = ("mixed", "classifier", "open_ranks", "every_batch", *WITHOUT_BATCH)
# An encoder's fp16 is built in tests/builders/test_onnxruntime_tasks.py.
ENCODED = ("fp32", "int8")
CLIENTS = 16
BOUND = 4
AT_ONCE = 32
TEXTS = (
    "How do I reset my password?",
    "I cannot log in to my account.",
    "The capital of France is Paris.",
    "Berlin is a large city in Germany.",
    "Green apples are sour.",
    "She bought a basket of fruit at the market.",
)

Arrays = dict[str, Any]
Reference = Callable[[Path, Arrays], Arrays]


@pytest.fixture(scope="module")
def project(
    onnxruntime_environment: Path, minilm: Path, tmp_path_factory: pytest.TempPathFactory
) -> Project:
    """A given graph in every precision and a sentence encoder, built."""
    folder = tmp_path_factory.mktemp("graphs")
    script = TESTS / "onnx_graphs.py"
    subprocess.run([onnxruntime_environment, script, folder, *GIVEN], check=True)
    # Long enough for the requests of a test to meet in one batch.
    serving = {"dynamic_batching": {"max_queue_delay_microseconds": 50_000}}
    models = {
        f"{name}_{precision}": {
            "task": "tensors",
            "checkpoint": str(checkpoint),
            "engine": {
                "builder": "onnxruntime",
                "precision": precision,
                "max_batch_size": 0 if name in WITHOUT_BATCH else MOST_ROWS,
            },
            "serving": {} if name in WITHOUT_BATCH else serving,
        }
        for name, checkpoint, precisions in (
            *((name, folder / name, PRECISIONS[: 3 if name == "mixed" else 1]) for name in GIVEN),
            ("minilm", minilm, ENCODED),
        )
        for precision in precisions
    }
    timed = {"priority_levels": 2, "default_timeout_microseconds": 60_000_000}
    models["timed"] = models["distances_fp32"] | {"serving": {"queue": timed}}
    bounded = {"serving": {"queue": {"max_queue_size": BOUND}}}
    models["bounded"] = models["minilm_fp32"] | bounded
    file = folder / "tritonctl.yaml"
    file.write_text(
        json.dumps({"schema": "tritonctl/v1", "models": models, "server": ON_FREE_PORTS})
    )
    project = load_project(file)
    build_cached(project)
    return project


@pytest.fixture(scope="module")
def server(project: Project) -> Iterator[Server]:
    """One Triton with all of them."""
    state, _ = start(project, render(project, Silent()), Silent())
    yield state
    stop(project, Silent())


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[TritonClient]:
    """A client, shared by threads."""
    with TritonClient(server.grpc_url) as client:
        yield client


@pytest.fixture(scope="module")
def reference(onnxruntime_environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """What a graph or a checkpoint answers without Triton."""

    def ask(model: Path, inputs: Arrays) -> Arrays:
        tmp_path = tmp_path_factory.mktemp("reference")
        np.savez(tmp_path / "inputs.npz", **inputs)
        script = TESTS / "onnx_reference.py"
        files = [model, tmp_path / "inputs.npz", tmp_path / "outputs.npz"]
        subprocess.run([onnxruntime_environment, script, *files], check=True)
        with np.load(tmp_path / "outputs.npz") as arrays:
            return dict(arrays)

    return ask


@pytest.fixture(scope="module")
def states(reference: Reference, minilm: Path) -> Any:
    """What transformers makes of TEXTS: FP32[texts, tokens, 384]."""
    return reference(minilm, encoded(minilm))["last_hidden_state"]


def mixed_inputs(rows: int, length: int, seed: int = 1) -> Arrays:
    """Inputs of the graph `mixed`."""
    random = np.random.default_rng(seed)
    return {
        "features": random.standard_normal((rows, 16)).astype(np.float32),
        "ids": random.integers(0, 10, (rows, 2)),
        "name": np.array([[f"näme {seed}.{row}"] for row in range(rows)]),
        "sequence": random.standard_normal((rows, length)).astype(np.float32),
    }


def rows_of(arrays: Arrays, start: int, end: int) -> Arrays:
    return {name: array[start:end] for name, array in arrays.items()}


def as_text(array: Any) -> list[str]:
    return [item.decode("utf-8") if isinstance(item, bytes) else str(item) for item in array.flat]


def assert_same(got: Arrays, want: Arrays, *, tolerance: float) -> None:
    assert got.keys() == want.keys()
    for name, array in want.items():
        if array.dtype.kind == "U":
            assert as_text(got[name]) == as_text(array)
            continue
        assert got[name].dtype == array.dtype
        assert got[name].shape == array.shape
        np.testing.assert_allclose(got[name], array, atol=tolerance, rtol=0)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_given_graph_answers_as_in_this_process(
    project: Project, client: TritonClient, reference: Reference, precision: str
) -> None:
    """All outputs, several rows at once: floats, table rows, texts."""
    name = f"mixed_{precision}"
    inputs = mixed_inputs(rows=5, length=9)
    want = reference(built_engine(project, name).folder / "engine" / "model.onnx", inputs)
    assert_same(client.infer(name, inputs, timeout=60), want, tolerance=1e-5)


def test_tensors_of_the_batch_dimension_alone(
    project: Project, client: TritonClient, reference: Reference
) -> None:
    """[batch] in the graph is [batch, 1] for clients: inputs, texts and numbers, batched too."""
    random = np.random.default_rng(11)
    x = random.standard_normal((AT_ONCE, 4)).astype(np.float32)
    weight = random.standard_normal(AT_ONCE).astype(np.float32)
    graph = built_engine(project, "classifier_fp32").folder / "engine" / "model.onnx"
    want = reference(graph, {"x": x, "weight": weight})
    assert want["label"].shape == want["score"].shape == (AT_ONCE,)
    assert len({*want["label"]}) == 3

    def ask(first: int) -> Arrays:
        rows = slice(first, first + 2)
        inputs = {"x": x[rows], "weight": weight[rows, None]}
        return client.infer("classifier_fp32", inputs, timeout=60)

    first_rows = range(0, AT_ONCE, 2)
    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = list(pool.map(ask, first_rows))
    for first, answer in zip(first_rows, answers, strict=True):
        rows = rows_of(want, first, first + 2)
        rows |= {name: rows[name][:, None] for name in ("label", "score")}
        assert_same(answer, rows, tolerance=1e-6)


def values(shape: list[int], data_type: str, seed: int) -> Any:
    """An array of Triton's type."""
    random = np.random.default_rng(seed)
    numbers = random.integers(0, 100, shape)
    if data_type == "TYPE_STRING":
        return np.array([f"näme {n}" for n in numbers.reshape(-1)]).reshape(shape)
    kinds = {"TYPE_FP32": np.float32, "TYPE_INT64": np.int64, "TYPE_BOOL": np.bool_}
    return (numbers % 2 if data_type == "TYPE_BOOL" else numbers).astype(kinds[data_type])


@pytest.mark.parametrize(("graph", "batch"), [("every_shape", []), ("every_batch", [3])])
def test_every_shape_of_a_graph(
    project: Project, client: TritonClient, graph: str, batch: list[int]
) -> None:
    """Rank 0 to 4, each dimension fixed, named or neither: what is sent comes back."""
    specs = built_engine(project, f"{graph}_fp32").manifest.result.tensors.inputs
    assert len(specs) == {"every_shape": 121, "every_batch": 80}[graph]
    dims = {spec.name: [2 if size < 0 else size for size in spec.dims] or [1] for spec in specs}
    sent = {
        spec.name: values([*batch, *dims[spec.name]], spec.data_type, seed)
        for seed, spec in enumerate(specs)
    }
    answer = client.infer(f"{graph}_fp32", sent, timeout=60)
    assert_same(answer, {name.replace("x", "y", 1): a for name, a in sent.items()}, tolerance=0)


def test_requests_of_graphs_without_a_batch_run_alone(
    server: Server, project: Project, client: TritonClient, reference: Reference
) -> None:
    """Of different shapes and at once: each gets the answer to what it sent, from its own run."""
    random = np.random.default_rng(5)
    graphs: dict[str, list[Arrays]] = {
        "scalars": [
            {
                "x": random.standard_normal((rows, 3)).astype(np.float32),
                "threshold": np.array([rows / 10], np.float32),
                "note": np.array([f"nöte {rows}"]),
            }
            for rows in range(1, 7)
        ],
        "distances": [
            {
                "x": random.standard_normal((n, 3)).astype(np.float32),
                "y": random.standard_normal((7 - n, 3)).astype(np.float32),
            }
            for n in range(1, 7)
        ],
        "waveform": [{"x": random.standard_normal(n).astype(np.float32)} for n in range(1, 7)],
    }
    for graph, sent in (*graphs.items(), ("timed", graphs["distances"])):
        model = graph if graph == "timed" else f"{graph}_fp32"
        before = executions(server.grpc_url, model)
        with ThreadPoolExecutor(CLIENTS) as pool:
            answers = list(pool.map(lambda i, m=model: client.infer(m, i, timeout=60), sent))
        after = executions(server.grpc_url, model)
        assert after[1] - before[1] == len(sent)
        file = built_engine(project, model).folder / "engine" / "model.onnx"
        for inputs, answer in zip(sent, answers, strict=True):
            scalars = {"threshold", "note"} & inputs.keys()
            own = inputs | {name: inputs[name].reshape(()) for name in scalars}
            want = {name: np.atleast_1d(array) for name, array in reference(file, own).items()}
            assert_same(answer, want, tolerance=1e-5)


def test_another_shape_than_a_graph_has_is_refused(client: TritonClient) -> None:
    """Triton knows the whole shape: a batch is none."""
    with pytest.raises(RequestRejectedError, match=r"unexpected shape"):
        client.infer("fixed_batch_fp32", {"x": np.zeros((2, 3), np.float32)}, timeout=60)


def test_outputs_that_have_no_shape_in_the_file(
    project: Project, client: TritonClient, reference: Reference
) -> None:
    """As of a classifier of scikit-learn."""
    random = np.random.default_rng(2)
    x = random.standard_normal((4, 4)).astype(np.float32)
    weight = random.standard_normal(4).astype(np.float32)
    graph = built_engine(project, "open_ranks_fp32").folder / "engine" / "model.onnx"
    want = reference(graph, {"x": x, "weight": weight})
    want |= {name: want[name][:, None] for name in ("label", "score")}
    answer = client.infer("open_ranks_fp32", {"x": x, "weight": weight[:, None]}, timeout=60)
    assert_same(answer, want, tolerance=1e-6)


def test_only_the_outputs_asked_for(client: TritonClient) -> None:
    """The graph's other outputs stay out of the answer."""
    answer = client.infer("mixed_fp32", mixed_inputs(2, 4), ["mean", "rows"], timeout=60)
    assert sorted(answer) == ["mean", "rows"]


def executions(url: str, model: str) -> tuple[int, int]:
    """Rows inferred and executions so far. Triton counts a request after it has answered it: so
    these are the figures once they have stood still for a fifth of a second.
    """
    earlier, latest = None, counted(url, model)
    while latest != earlier:
        time.sleep(0.2)
        earlier, latest = latest, counted(url, model)
    return latest


def counted(url: str, model: str) -> tuple[int, int]:
    """The figures now, from Triton's statistics."""
    with grpc.insecure_channel(url) as channel:
        request = service_pb2.ModelStatisticsRequest(name=model)
        answer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStatistics(request)
    (stats,) = answer.model_stats
    return stats.inference_count, stats.execution_count


def test_concurrent_requests_share_runs_and_keep_their_answers(
    server: Server, project: Project, client: TritonClient, reference: Reference
) -> None:
    """Clients with one to three rows each and four lengths: everyone gets the rows they sent."""
    before = executions(server.grpc_url, "mixed_fp32")
    sizes = [(1 + n % 3, 3 + n % 4) for n in range(CLIENTS * 3)]
    asked = [mixed_inputs(rows, length, seed=n) for n, (rows, length) in enumerate(sizes)]
    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = list(pool.map(lambda i: client.infer("mixed_fp32", i, timeout=60), asked))
    after = executions(server.grpc_url, "mixed_fp32")
    file = built_engine(project, "mixed_fp32").folder / "engine" / "model.onnx"
    for length in {length for _, length in sizes}:
        chosen = [n for n, (_, own) in enumerate(sizes) if own == length]
        joined = {
            name: np.concatenate([asked[n][name] for n in chosen]) for name in asked[chosen[0]]
        }
        want, start = reference(file, joined), 0
        for n in chosen:
            end = start + sizes[n][0]
            assert_same(answers[n], rows_of(want, start, end), tolerance=1e-5)
            start = end
    assert after[0] - before[0] == sum(rows for rows, _ in sizes)
    assert after[1] - before[1] < len(sizes)


def test_a_bad_request_fails_alone(client: TritonClient) -> None:
    """An id that the table has not, in a batch with good requests: its client's mistake."""
    asked = [mixed_inputs(1, 4, seed=n) for n in range(6)]
    asked[2]["ids"] = np.array([[0, 99]])

    def ask(inputs: Arrays) -> Arrays | Exception:
        try:
            return client.infer("mixed_fp32", inputs, timeout=60)
        except RequestRejectedError as error:
            return error

    with ThreadPoolExecutor(len(asked)) as pool:
        answers = list(pool.map(ask, asked))
    assert "ONNX Runtime" in str(answers.pop(2))
    assert [answer for answer in answers if isinstance(answer, Exception)] == []


def test_overload_is_refused(client: TritonClient) -> None:
    """One run goes on, as many wait as may, the others are refused; no answer is wrong."""
    rows = np.tile(np.arange(1000, 1256), (MOST_ROWS, 1))
    inputs = {"input_ids": rows, "attention_mask": rows * 0 + 1, "token_type_ids": rows * 0}

    def ask(_: int) -> Arrays | ServerBusyError:
        try:
            return client.infer("bounded", inputs, timeout=60)
        except ServerBusyError as error:
            return error

    want = client.infer("minilm_fp32", inputs, timeout=60)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(ask, range(AT_ONCE)))
    refused = [answer for answer in answers if isinstance(answer, ServerBusyError)]
    whole = [answer for answer in answers if not isinstance(answer, ServerBusyError)]
    assert len(whole) > BOUND
    assert len(refused) >= len(whole)
    assert all("is full: 4 requests wait" in str(error) for error in refused)
    for answer in whole:
        assert_same(answer, want, tolerance=1e-4)


def encoded(folder: Path) -> Arrays:
    """The texts as the inputs of an encoder."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    rows = [encoding.ids for encoding in tokenizer.encode_batch(list(TEXTS))]
    ids = np.zeros((len(rows), max(map(len, rows))), dtype=np.int64)
    for target, row in zip(ids, rows, strict=True):
        target[: len(row)] = row
    mask = (np.arange(ids.shape[1]) < np.array([[len(row)] for row in rows])).astype(np.int64)
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


def nearest(states: Any, mask: Any) -> list[int]:
    """For each text the one most like it."""
    vectors = (states * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    similarity = vectors @ vectors.T
    np.fill_diagonal(similarity, -1)
    return [int(row) for row in similarity.argmax(1)]


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("int8", 1.2)])
def test_a_real_encoder_answers_as_transformers_does(
    client: TritonClient, states: Any, minilm: Path, precision: str, tolerance: float
) -> None:
    """MiniLM's states through gRPC; the pairs of like texts find each other in each precision."""
    inputs = encoded(minilm)
    got = client.infer(f"minilm_{precision}", inputs, timeout=60)
    said = inputs["attention_mask"].astype(bool)
    error = np.abs(got["last_hidden_state"] - states)[said].max()
    assert error <= tolerance
    assert nearest(got["last_hidden_state"], inputs["attention_mask"]) == [1, 0, 3, 2, 5, 4]


def test_too_long_a_text_is_refused_by_name(client: TritonClient) -> None:
    """Instead of a position that the table has not."""
    long = np.ones((1, 513), dtype=np.int64)
    inputs = {"input_ids": long, "attention_mask": long, "token_type_ids": long * 0}
    with pytest.raises(RequestRejectedError, match=r"input_ids has 513 tokens .* up to 512"):
        client.infer("minilm_fp32", inputs, timeout=60)


def test_what_the_builds_cost_in_accuracy_is_in_their_manifests(project: Project) -> None:
    """Measured against the source: equal in fp32, worse with fewer bits."""
    found = [built_engine(project, f"minilm_{p}").manifest.result.parity for p in ENCODED]
    errors = [parity.max_abs_error for parity in found if parity is not None]
    assert len(errors) == len(ENCODED)
    assert errors == sorted(errors)
    assert errors[0] < 1e-4
