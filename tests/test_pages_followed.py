# SPDX-License-Identifier: Apache-2.0
"""Tutorials and guides are followed to the letter, on real engines and a real Triton."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.conftest import CHECKOUT, EXAMPLE
from tests.engine_cache import build_cached
from tests.hub_server import Hub, serving
from tests.page_reader import Reader, blocks, reader, typed
from tests.server.trtllm import lay_out_stand_in, stand_in_engine
from tritonctl.project.file import load_project

QUICKSTART = "tritonctl-quickstart"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
# The README's test runs the same one in full.
LOAD_TEST = "tritonctl loadtest run"
ENGINE = "max_batch_size: 32"
PORTS = {f"TRITONCTL_SERVER__{name}_PORT": "0" for name in ("GRPC", "HTTP", "METRICS")}


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A hub of our own."""
    with serving() as one:
        yield one


@pytest.fixture
def visitor(tmp_path: Path, hub: Hub) -> Iterator[Reader]:
    """Somebody in an empty folder with `tritonctl` on the path, whose hub is ours."""
    environment = os.environ | PORTS | {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    (tmp_path / "home").mkdir()
    with reader(tmp_path / "home", environment) as one:
        yield one


def built_quickstart(folder: Path, *limits: str) -> Path:
    """The project of `tritonctl quickstart`, its engines built before: one for each limit."""
    project = folder / QUICKSTART
    shutil.copytree(EXAMPLE / "checkpoint", project / "checkpoint")
    for name in ("prompts.jsonl", "tritonctl.yaml"):
        shutil.copyfile(EXAMPLE / name, project / name)
    file = project / "tritonctl.yaml"
    shipped = file.read_text(encoding="utf-8")
    assert ENGINE in shipped
    for limit in (*limits, ENGINE):
        file.write_text(shipped.replace(ENGINE, limit), encoding="utf-8")
        build_cached(load_project(file))
    return project


def files_of(folder: Path) -> dict[str, bytes]:
    """What a repository of the hub would hold."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_blocks_are_found() -> None:
    """Commands, files and what is only shown; else the tests here test nothing."""
    page = blocks(CHECKOUT / "docs" / "how-to" / "own-steps.md")
    assert "python_backends/guarded_step/model.py" in [block.file for block in page]
    assert "tritonctl generate guarded 7342" in [line for block in page for line in typed(block)]
    tls = blocks(CHECKOUT / "docs" / "how-to" / "tls-and-keys.md")
    assert any(line.startswith("tritonctl certs") for block in tls for line in typed(block))


@pytest.mark.exhaustive
@pytest.mark.server
@pytest.mark.timeout(600)
def test_first_service(visitor: Reader) -> None:
    """The first tutorial, with engines of earlier runs."""
    built_quickstart(visitor.folder, "max_batch_size: 16")
    visitor.follow("tutorials/first-service.md", leaving_out=[LOAD_TEST])
    assert " seven thousand three hundred forty-two" in visitor.outputs["tritonctl quickstart"]
    assert "ห้าร้อยสิบห้า" in visitor.outputs['tritonctl generate speller "515 in Thai:"']


@pytest.mark.server
@pytest.mark.exhaustive
def test_own_steps(visitor: Reader) -> None:
    """A step of one's own, from the files on the page to an answer."""
    visitor.folder = built_quickstart(visitor.folder)
    visitor.follow("how-to/own-steps.md")
    said = visitor.outputs
    assert "seven thousand three hundred forty-two" in said["tritonctl generate guarded 7342"]
    [alone] = [text for command, text in said.items() if "infer guarded_step" in command]
    assert alone.strip() == '{"tidied": [["7342 in English:"]]}'


@pytest.mark.server
@pytest.mark.exhaustive
def test_tls(visitor: Reader) -> None:
    """Certificates made, named, used; the section on the page is the one that is printed."""
    project = built_quickstart(visitor.folder)
    visitor.folder = project
    page = blocks(CHECKOUT / "docs" / "how-to" / "tls-and-keys.md")
    section = next(block.text for block in page if block.text.startswith("server:\n  tls:"))
    file = project / "tritonctl.yaml"
    lines = file.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if not line.startswith("server:")]
    file.write_text("\n".join([*kept, section]), encoding="utf-8")
    own = [line for block in page[:4] for line in typed(block) if "--url" not in line]
    assert [line.split()[1] for line in own] == ["certs", "down", "up", "generate"]
    printed = visitor.type(own[0])
    wanted = {" ".join(line.split("#")[0].split()) for line in section.splitlines()}
    assert wanted <= {" ".join(line.split()) for line in printed.splitlines()}
    for command in own[2:]:
        visitor.type(command)
    assert " seven thousand" in visitor.outputs[own[3]]


@pytest.mark.server
@pytest.mark.engine
@pytest.mark.exhaustive
def test_first_service_from_nothing(visitor: Reader) -> None:
    """The first tutorial as it is: engines are built, the load test takes its time."""
    visitor.follow("tutorials/first-service.md")
    assert "READY" in visitor.outputs["tritonctl status"]


@pytest.mark.server
@pytest.mark.engine
@pytest.mark.exhaustive
@pytest.mark.timeout(2400)
def test_load_test_and_tune(visitor: Reader) -> None:
    """With a minute for what takes ten."""
    shorter = {"--budget 10": "--budget 1", "--budget 5": "--budget 1"}
    visitor.follow("tutorials/load-test-and-tune.md", instead=shorter)
    assert "TTFT" in visitor.outputs["tritonctl loadtest run --output before"]


@pytest.mark.server
@pytest.mark.engine
@pytest.mark.exhaustive
def test_llm_on_cpu(visitor: Reader, hub: Hub) -> None:
    """From the hub: there the shipped checkpoint has the name of the tutorial's model."""
    hub.put("Qwen/Qwen2.5-0.5B-Instruct", COMMIT, files_of(EXAMPLE / "checkpoint"))
    visitor.follow("tutorials/llm-on-cpu.md")
    assert "READY" in visitor.outputs["tritonctl status"]
    visitor.type("tritonctl plan --env h100")


@pytest.mark.server
@pytest.mark.engine
@pytest.mark.exhaustive
def test_encoder_and_onnx(visitor: Reader) -> None:
    """Both shipped models and the graph: what they answer is what the page says."""
    start = visitor.folder
    visitor.follow("tutorials/encoder-and-onnx.md")
    said = visitor.outputs
    [two] = [text for command, text in said.items() if "--text 7342" in command]
    digits, words = ([*json.loads(line)["embedding"]] for line in two.splitlines())
    assert sum(a * b for a, b in zip(digits, words, strict=True)) > 0.9
    reader = start / "digit-reader"
    pairs = zip(
        (reader / "answers.jsonl").read_text(encoding="utf-8").splitlines(),
        (reader / "held-out.jsonl").read_text(encoding="utf-8").splitlines(),
        strict=True,
    )
    right = [
        json.loads(answer)["labels"][0]["label"] == json.loads(asked)["label"]
        for answer, asked in pairs
    ]
    assert (sum(right), len(right)) == (350, 360)
    [vector] = [text for command, text in said.items() if "infer finder" in command]
    assert len(json.loads(vector)["embedding"][0]) == 128


@pytest.mark.server
@pytest.mark.exhaustive
def test_llm_on_h100(visitor: Reader, hub: Hub) -> None:
    """Every command that the dry run shows; what needs the GPU runs on a stand-in of it."""
    hub.put("meta-llama/Llama-3.1-8B-Instruct", COMMIT, files_of(EXAMPLE / "checkpoint"))
    page = blocks(CHECKOUT / "docs" / "tutorials" / "llm-on-h100-fp8.md")
    commands = [line for block in page for line in typed(block)]
    dry = commands.index("tritonctl build --dry-run")
    for command in commands[1 : dry + 1]:  # the first one is doctor: it would miss the GPU
        visitor.type(command)
    assert "trtllm-build --checkpoint_dir" in visitor.outputs["tritonctl build --dry-run"]
    lay_out_stand_in(visitor.folder, "1.2.1")
    file = visitor.folder / "tritonctl.yaml"
    project = yaml.safe_load(file.read_text(encoding="utf-8"))
    project["models"]["llama"]["engine"] = stand_in_engine("engine", "1.2.1")
    project["server"] = {"mode": "embedded"}
    file.write_text(json.dumps(project), encoding="utf-8")
    for command in commands[dry + 1 :]:
        if not command.startswith(("docker", "tritonctl tune")):
            visitor.type(command)
    assert "READY" in visitor.outputs["tritonctl status"]
