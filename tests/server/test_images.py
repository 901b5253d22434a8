# SPDX-License-Identifier: Apache-2.0
"""Images through a real Triton: over gRPC and HTTP, many at once, good ones beside bad ones."""

from __future__ import annotations

import base64
import json
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.builders.warm import make_warm
from tests.commands import run_here
from tests.engine_cache import build_cached, content, kept
from tests.sample_images import bombs, encoded, every_kind, smooth
from tests.servers import ON_FREE_PORTS
from tritonctl.engines.builds.engine import built_engine
from tritonctl.errors import RequestRejectedError
from tritonctl.host.progress import Silent
from tritonctl.project.file import load_project
from tritonctl.project.schema import Project
from tritonctl.protocol.client import TritonClient
from tritonctl.repository.publish import render
from tritonctl.runtimes.lifecycle import start, stop
from tritonctl.runtimes.server_state import Server

pytestmark = [pytest.mark.engine, pytest.mark.server]

SCRIPT = Path(__file__).resolve().parents[1] / "tiny_vision.py"
CLASSES = {"image_classification": "ViTForImageClassification", "image_embedding": "CLIPModel"}
CLIENTS = 12


@pytest.fixture(scope="module")
def project(onnxruntime_environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A classifier in steps and CLIP's image tower in one, small, built and proven."""
    folder = tmp_path_factory.mktemp("images")
    inputs = {"script": content(SCRIPT), "python": onnxruntime_environment.parents[1].name}
    models: dict[str, Any] = {}
    for task, name in CLASSES.items():

        def write(into: Path, name: str = name) -> None:
            make_warm(onnxruntime_environment, SCRIPT, name, into)

        kept("vision", inputs | {"name": name}, write, folder / name)
        engine = {"builder": "onnxruntime", "precision": "fp32", "max_batch_size": 8}
        models[task] = {"task": task, "checkpoint": str(folder / name), "engine": engine}
    models["image_embedding"]["serving"] = {"max_image_pixels": 1_000_000, "fused": True}
    file = folder / "tritonctl.yaml"
    record = {"schema": "tritonctl/v1", "models": models, "server": ON_FREE_PORTS}
    file.write_text(json.dumps(record), encoding="utf-8")
    project = load_project(file)
    build_cached(project)
    return project


@pytest.fixture(scope="module")
def server(project: Project) -> Iterator[Server]:
    """One Triton with both."""
    state, _ = start(project, render(project, Silent()), Silent())
    yield state
    stop(project, Silent())


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[TritonClient]:
    """A client, shared by threads."""
    with TritonClient(server.grpc_url) as client:
        yield client


def images(*files: bytes) -> dict[str, Any]:
    """The inputs of a request with these images."""
    return {"image": np.array([[file] for file in files], dtype=object)}


def cases(project: Project, task: str) -> list[dict[str, Any]]:
    """What the build has compared with transformers."""
    folder = built_engine(project, task).folder
    record = json.loads((folder / "proof" / "cases.json").read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = record["cases"]
    return found


@pytest.mark.parametrize(
    ("task", "output"), [("image_classification", "score"), ("image_embedding", "embedding")]
)
def test_served_answers_are_those_of_transformers(
    project: Project, client: TritonClient, task: str, output: str
) -> None:
    """Every image of the proof, with the answer that transformers gave to it."""
    for case in cases(project, task):
        _, _, data = case["input"]["image"].partition(",")
        answer = client.infer(task, images(base64.b64decode(data)), timeout=60)
        assert np.abs(answer[output][0] - case["expected"][output]).max() < 1e-4
        if output == "score":
            assert [one.decode() for one in answer["label"][0]] == case["expected"]["label"]


def test_best_labels_over_http(project: Project, server: Server) -> None:
    """JSON has no bytes: a data URL stands for the file."""
    case = cases(project, "image_classification")[0]
    tensors = {"image": ("BYTES", case["input"]["image"]), "top_k": ("INT32", 2)}
    body = {
        "inputs": [
            {"name": name, "datatype": kind, "shape": [1, 1], "data": [value]}
            for name, (kind, value) in tensors.items()
        ]
    }
    url = f"{server.http_url}/v2/models/image_classification/infer"
    with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=60) as response:  # noqa: S310
        answer = {one["name"]: one["data"] for one in json.load(response)["outputs"]}
    assert answer["label"] == case["expected"]["label"][:2]
    assert np.abs(np.subtract(answer["score"], case["expected"]["score"][:2])).max() < 1e-4


def test_many_clients_and_a_few_bad_images(client: TritonClient) -> None:
    """Each gets the vector of its own image, or the reason why there is none."""
    good = [encoded(smooth(40 + n, 60, seed=n), "JPEG") for n in range(CLIENTS)]
    bad = {
        b"no image at all": "image has an unsupported format",
        b"": "image is empty",
        good[0][:500]: "image cannot be decoded",
        bombs(20_000)["png"]: "more pixels than this model's limit of 1000000",
        bombs(1200)["jpeg"]: "image is 1200 x 1200 pixels, more than this model's limit of 1000000",
    }
    alone = [client.infer("image_embedding", images(file), timeout=60) for file in good]

    def ask(file: bytes) -> Any:
        try:
            return client.infer("image_embedding", images(file), timeout=60)["embedding"][0]
        except RequestRejectedError as error:
            return str(error)

    everything = [*good, *bad] * 3
    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = dict(zip(everything, pool.map(ask, everything), strict=True))
    for file, answer in zip(good, alone, strict=True):
        np.testing.assert_allclose(answers[file], answer["embedding"][0], atol=1e-4)
    for file, reason in bad.items():
        assert reason in answers[file]


def test_a_batch_names_the_image_that_is_wrong(client: TritonClient) -> None:
    """By its index; a batch of good ones has its answers in order, whatever their formats are."""
    kinds = list(every_kind().values())
    for at in range(0, len(kinds), 6):
        files = kinds[at : at + 6]
        together = client.infer("image_embedding", images(*files), timeout=60)["embedding"]
        for file, row in zip(files, together, strict=True):
            answer = client.infer("image_embedding", images(file), timeout=60)["embedding"][0]
            np.testing.assert_allclose(answer, row, atol=1e-4)
    files = kinds[:6]
    with pytest.raises(RequestRejectedError, match=r"image\[3\] is empty"):
        client.infer("image_embedding", images(*files[:3], b"", *files[4:6]), timeout=60)
    with pytest.raises(RequestRejectedError, match=r"image\[1\] has an unsupported format"):
        client.infer("image_classification", images(files[0], b"text"), timeout=60)


def test_the_verbs_take_image_files(project: Project, server: Server, tmp_path: Path) -> None:
    """`classify` and `embed`: each line a path, or named; what is no image has its reason."""
    found = cases(project, "image_classification")
    paths = []
    for number, case in enumerate(found):
        paths.append(tmp_path / f"{number}.img")
        paths[-1].write_bytes(base64.b64decode(case["input"]["image"].partition(",")[2]))
    (tmp_path / "no.png").write_bytes(b"no image")
    listed = tmp_path / "images.txt"
    lines = [*map(str, paths), str(tmp_path / "no.png"), "nowhere.png"]
    listed.write_text("\n".join(lines), encoding="utf-8")
    options = ("--on-error", "keep", "--quiet")
    done = run_here("classify", "image_classification", listed, *options, cwd=project.root)
    assert done.returncode == 0, done.stderr
    *answers, broken, missing = map(json.loads, done.stdout.splitlines())
    for case, one in zip(found, answers, strict=True):
        right = case["expected"]
        assert [pair["label"] for pair in one["labels"]] == right["label"][:5]
        scores = [pair["score"] for pair in one["labels"]]
        assert np.abs(np.array(scores) - right["score"][:5]).max() < 1e-4
    assert "image" in broken["error"]
    assert "nowhere.png' cannot be read" in missing["error"]
    named = ("--image", str(paths[0]), "--image", str(paths[1]))
    done = run_here("embed", "image_embedding", *named, "--quiet", cwd=project.root)
    vectors = [json.loads(line)["embedding"] for line in done.stdout.splitlines()]
    with TritonClient(server.grpc_url) as client:
        wanted = client.embed_images("image_embedding", paths[:2])
    assert np.allclose(vectors, np.stack([one.vector for one in wanted]), atol=1e-6)
    done = run_here("embed", "image_embedding", "--text", "a", cwd=project.root)
    assert done.returncode == 2
    assert "use --image" in done.stderr
