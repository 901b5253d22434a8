# SPDX-License-Identifier: Apache-2.0
"""The OpenVINO builder's side of the contract: request, prompts, figures, failed results."""

from __future__ import annotations

import dataclasses
import errno
import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tritonctl.engines.builds.contract import (
    BuildRequest,
    CalibrationRequest,
    EngineLimits,
    EvaluationRequest,
)
from tritonctl.engines.builds.contract_files import contract_files
from tritonctl.project.compatibility.table import BuildTarget

BUILDER = Path(__file__).resolve().parents[2] / "builders" / "openvino"

Refusal = Callable[[Callable[[], object]], str]


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def request(checkpoint: Path, /, **changes: Any) -> dict[str, Any]:
    """A build request as the host writes it."""
    limits = dict.fromkeys(("max_input_len", "max_seq_len", "max_num_tokens"))
    sizes = {"max_batch_size": 4, "max_beam_width": 1, "tp_size": 1, "pp_size": 1}
    return {
        "schema": "tritonctl.build/1",
        "model": "m",
        "checkpoint": str(checkpoint),
        "precision": "int4",
        "limits": {**sizes, **limits, **changes.pop("limits", {})},
        "trust_remote_code": False,
        "options": {},
        "evaluation": None,
        **changes,
    }


def test_request_defaults(builder: SimpleNamespace, tmp_path: Path) -> None:
    write_json(tmp_path / "R.json", request(tmp_path, options={"ratio": 0.5}))
    read = builder.request.read_request(tmp_path / "R.json")
    options = builder.options.read_options(read)
    assert (options.group_size, options.ratio) == (64, 0.5)
    assert read.evaluation is None
    assert read.limits.max_seq_len is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"schema": "tritonctl.build/2"}, "expected 'tritonctl.build/1'"),
        ({"precison": "int8"}, "unknown key 'precison' (did you mean precision?)"),
        ({"checkpoint": None}, "lacks the key 'checkpoint'"),
        ({"precision": "int8_wo"}, "no precision 'int8_wo' (did you mean int8?)"),
        ({"limits": {"tp_size": 2}}, "engine.tp_size is 2"),
        ({"limits": {"pp_size": 4}}, "engine.pp_size is 4"),
        ({"limits": {"max_beam_width": 2}}, "engine.max_beam_width is 2"),
        ({"limits": {"max_batch_size": -1}}, "engine.max_batch_size is -1"),
        ({"limits": {"max_seq_len": True}}, "engine.max_seq_len is True"),
        ({"limits": {"max_batchsize": 1}}, "(did you mean max_batch_size?)"),
        ({"options": {"groupsize": 64}}, "'groupsize' (did you mean group_size?)"),
        ({"options": {"group_size": 48}}, "group_size is 48"),
        ({"options": {"group_size": True}}, "group_size is True"),
        ({"options": {"ratio": 0}}, "ratio is 0"),
        ({"options": {"ratio": "half"}}, "ratio is 'half'"),
        ({"options": {"ratio": 0.5}, "precision": "int8"}, "ratio, which only int4 has"),
        ({"options": [1]}, "engine.options is [1], expected a JSON object"),
        ({"evaluation": {"prompts": "p"}}, "lacks the key 'max_tokens'"),
        ({"trust_remote_code": "no"}, "trust_remote_code is 'no', expected true or false"),
        ({"precision": 8}, "precision is 8, expected text"),
        (
            {"evaluation": {"prompts": "p", "max_tokens": 1, "min_exact_match": 98}},
            "min_exact_match is 98",
        ),
    ],
)
def test_a_request_is_refused(
    builder: SimpleNamespace,
    refusal: Refusal,
    tmp_path: Path,
    changes: dict[str, Any],
    expected: str,
) -> None:
    asked = request(tmp_path, **changes)
    if asked["checkpoint"] is None:
        del asked["checkpoint"]
    write_json(tmp_path / "R.json", asked)
    read = builder.request.read_request
    text = refusal(lambda: builder.options.read_options(read(tmp_path / "R.json")))
    assert expected in text


def test_builders_check_by_the_schema_of_the_host_s_models() -> None:
    """Their files are up to date: each fact of a request or result is written once."""
    folder = BUILDER.parent / "shared/buildlib"
    files = {name: (folder / name).read_text("utf-8") for name in contract_files()}
    assert files == contract_files(), "run `make contracts`"


def test_everything_the_host_may_ask(builder: SimpleNamespace, tmp_path: Path) -> None:
    """Both sides read every key alike."""
    sizes = dict.fromkeys(EngineLimits.model_fields, 2)
    asked = {
        "evaluation": dict.fromkeys(EvaluationRequest.model_fields, 1) | {"prompts": "/p"},
        "target": dict.fromkeys(BuildTarget.model_fields, "x") | {"world": "pytorch"},
        "calibration": dict.fromkeys(CalibrationRequest.model_fields, 5)
        | {"data": "/d", "seed": 0},
        "stage": "quantise",
        "source": "/s",
        "kv_cache_dtype": "fp8",
        "allow_pickle": True,
        "options": {"quantise": {}},
        "task": "embedding",
    }
    written = BuildRequest.model_validate(request(tmp_path, limits=sizes, **asked))
    write_json(tmp_path / "R.json", written.model_dump(by_alias=True, mode="json"))
    read = dataclasses.asdict(builder.request.read_request(tmp_path / "R.json"))
    assert json.loads(json.dumps(read, default=str)) == written.model_dump(exclude={"schema_"})


class Letters:
    """A tokenizer of one id per letter; id 0 is a special token."""

    def encode(self, text: str, *, add_special_tokens: bool) -> SimpleNamespace:
        return SimpleNamespace(ids=[1] * add_special_tokens + [ord(letter) for letter in text])

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        special = "" if skip_special_tokens else "</s>"
        return "".join(chr(number) if number else special for number in ids)


def read_prompts(builder: SimpleNamespace, file: Path, **settings: Any) -> Any:
    asked = builder.request_types.RequestedEvaluation(file, **{"max_tokens": 8, **settings})
    return builder.prompts.read_prompts(asked, Letters(), max_seq_len=10)


def test_prompts_are_read(builder: SimpleNamespace, tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text(
        '{"text_input": "ab"}\n\n{"text_input": "一二三四", "text_output": "x", "n": 4}\n{}\n',
        encoding="utf-8",
    )
    first, second = read_prompts(builder, file, max_prompts=2)
    assert (first.ids, first.max_tokens, first.answer) == ([1, 97, 98], 7, None)
    assert (second.text, second.max_tokens, second.answer) == ("一二三四", 5, "x")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'{"text_input": "a"}\n{"text_input": \n', "p.jsonl:2: is not valid JSON"),
        (b'{"text_input": ""}', "p.jsonl:1: needs a text_input"),
        (b'{"text_input": "a", "text_output": 1}', "p.jsonl:1: needs a text_input"),
        (b'["a"]', "p.jsonl:1: needs a text_input"),
        (b'{"text_input": "abcdefghi"}', "p.jsonl:1: the prompt has 10 tokens"),
        (b"\n", "p.jsonl: holds no prompts"),
        (b"\xff", "p.jsonl: is not UTF-8"),
        (None, "p.jsonl: the evaluation prompts cannot be read"),
    ],
)
def test_malformed_prompts(
    builder: SimpleNamespace, refusal: Refusal, tmp_path: Path, content: bytes | None, expected: str
) -> None:
    file = tmp_path / "p.jsonl"
    if content is not None:
        file.write_bytes(content)
    assert expected in refusal(lambda: read_prompts(builder, file))


def outcome(builder: SimpleNamespace, got: list[str]) -> Any:
    prompt = builder.prompts.EvaluationPrompt
    prompts = [prompt(text, [1], 8, answer) for text, answer in (("p", "ab"), ("q", None))]
    expected = [[97, 98, 0], [99, 0]]
    answers = [[ord(letter) if letter != "." else 0 for letter in text] for text in got]
    return builder.compare.compare_answers(prompts, expected, answers, Letters())


def test_figures_of_equal_answers(builder: SimpleNamespace) -> None:
    figures = outcome(builder, ["ab.", "c."])
    assert (figures.exact_match, figures.answer_match, figures.diverged) == (1.0, 1.0, 0)
    assert figures.first_divergence is None
    assert figures.mean_divergence_token is None


@pytest.mark.parametrize(
    ("got", "token", "expected", "have"),
    [
        ("ax.", 1, "ab", "ax"),
        ("ab", 2, "ab</s>", "ab"),
        ("", 0, "ab", ""),
        ("abc.", 2, "ab", "abc"),
    ],
)
def test_figures_of_a_divergence(
    builder: SimpleNamespace, got: str, token: int, expected: str, have: str
) -> None:
    figures = outcome(builder, [got, "c."])
    assert (figures.exact_match, figures.diverged) == (0.5, 1)
    first = {"prompt": "p", "token": token, "expected": expected, "got": have}
    assert figures.first_divergence is not None
    assert dataclasses.asdict(figures.first_divergence) == first
    assert figures.mean_divergence_token == token


def test_too_few_equal_answers_fail_the_build(
    builder: SimpleNamespace, refusal: Refusal, tmp_path: Path
) -> None:
    evaluation = {"prompts": "p", "max_tokens": 8, "min_exact_match": 0.5}
    write_json(tmp_path / "R.json", request(tmp_path, evaluation=evaluation))
    asked = builder.request.read_request(tmp_path / "R.json")
    remedy = builder.precisions.remedy_for("int4")
    require = builder.compare.require_min_exact_match
    require(outcome(builder, ["ab.", "x."]), asked, remedy=remedy)
    text = refusal(lambda: require(outcome(builder, ["a.", "x."]), asked, remedy=remedy))
    assert "answers 0 of 2 prompts exactly as the checkpoint does (0.0%)" in text
    assert "asks for 50.0%; first divergence: 'p', token 1: 'ab' became 'a'" in text
    assert "Set engine.precision to int8" in text


def run_build(tmp_path: Path, content: str) -> tuple[int, dict[str, Any], str]:
    """Run build.py as the host does, with an interpreter that has nothing of the environment."""
    (tmp_path / "R.json").write_text(content, encoding="utf-8")
    (tmp_path / "S.json").write_text("left over", encoding="utf-8")
    files = ["--request", str(tmp_path / "R.json"), "--result", str(tmp_path / "S.json")]
    done = subprocess.run(
        [sys.executable, "-S", str(BUILDER / "build.py"), *files],
        cwd=tmp_path,
        env={"LC_ALL": "C"},
        capture_output=True,
        check=False,
    )
    result = json.loads((tmp_path / "S.json").read_text(encoding="utf-8"))
    assert not list(tmp_path.glob("*.tmp"))
    return done.returncode, result, done.stderr.decode()


def test_a_refusal_is_a_failed_result(tmp_path: Path) -> None:
    content = json.dumps(request(tmp_path / "零"), ensure_ascii=False)
    code, result, errors = run_build(tmp_path, content)
    assert code == 1
    assert set(result) == {"schema", "status", "problem", "remedy"}
    assert result["schema"] == "tritonctl.build-result/1"
    assert result["status"] == "failed"
    assert "零 does not exist" in result["problem"]
    assert "零 does not exist" in errors
    assert "Traceback" not in errors


def test_an_unreadable_request_is_a_failed_result(tmp_path: Path) -> None:
    code, result, _ = run_build(tmp_path, "{")
    assert code == 1
    assert "R.json:1:2: is not valid JSON" in result["problem"]


def test_an_incomplete_environment_is_named(checkpoint: Path, tmp_path: Path) -> None:
    code, result, errors = run_build(tmp_path, json.dumps(request(checkpoint)))
    assert code == 1
    assert "environment is incomplete: No module named 'tokenizers'" in result["problem"]
    assert "Traceback" in errors


def test_a_full_disk_is_named(
    builder: SimpleNamespace, small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a library says of it, and if it has removed the half-written file again."""
    monkeypatch.chdir(small_disk)
    failure = builder.program.to_build_error
    assert failure(RuntimeError("boom"), "convert").problem.endswith("RuntimeError: boom")
    checkpoint, file = tmp_path / "checkpoint", tmp_path / "R.json"
    checkpoint.mkdir()
    (checkpoint / "model.safetensors").write_bytes(b"x" * 3_000_000)
    file.write_text(json.dumps({"checkpoint": str(checkpoint)}))
    words = f"no space left in {small_disk} (stage convert): "
    for error in (
        RuntimeError("basic_ios::clear: iostream error"),  # OpenVINO's serialiser
        OSError(errno.ENOSPC, "No space left on device"),
    ):
        problem = failure(error, "convert", file).problem
        assert problem == (
            f"{words}2.1 MB free, 0.0 MB written so far; the checkpoint's weights have 3.0 MB"
        )
    (small_disk / "half an engine").write_bytes(b"x" * 1_500_000)
    told = failure(RuntimeError("whatever"), "convert")
    assert told.problem == f"{words}0.6 MB free, 1.5 MB written so far"
    assert f"df -h {small_disk}" in told.remedy
    assert "tritonctl plan" in told.remedy


def test_builder_toml_agrees_with_the_code(builder: SimpleNamespace) -> None:
    described = tomllib.loads((BUILDER / "builder.toml").read_text(encoding="utf-8"))
    assert described["schema"] == "tritonctl.builder/1"
    assert described["precisions"] == list(builder.precisions.PRECISIONS)


def test_requirements_are_pinned() -> None:
    lines = (BUILDER / "requirements.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all("==" in line for line in pins)
    assert "openvino==2026.4.1" in pins
    assert "openvino-genai==2026.4.1.0" in pins
    assert not any(line.startswith(("torch", "tritonctl")) for line in pins)
