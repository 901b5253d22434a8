# SPDX-License-Identifier: Apache-2.0
"""What the stage quantise of the TensorRT-LLM builder refuses, before torch is imported."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.builders.conftest import modules_of

BUILDER = Path(__file__).resolve().parents[2] / "builders" / "tensorrt_llm"
PROMPTS = BUILDER.parents[1] / "examples" / "number-speller" / "prompts.jsonl"
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 8,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "eos_token_id": 2,
}

Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def stage() -> Iterator[SimpleNamespace]:
    """The stage's modules that need the standard library only."""
    with modules_of("tensorrt_llm", ("recipes", "choices", "calibration")) as modules:
        yield modules


@pytest.fixture
def llama(checkpoint: Path) -> Path:
    """A checkpoint whose sizes divide, by some."""
    (checkpoint / "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
    return checkpoint


def request(checkpoint: Path, /, **changes: Any) -> dict[str, Any]:
    """A request as the host writes it for this stage."""
    return {
        "schema": "tritonctl.build/1",
        "model": "m",
        "checkpoint": str(checkpoint),
        "precision": "fp8",
        "limits": {"max_batch_size": 4, **changes.pop("limits", {})},
        "stage": "quantise",
        "target": {"release": "26.07", "world": changes.pop("world", "engine")},
        "calibration": calibration(PROMPTS),
        **changes,
    }


def calibration(data: Path, **changes: Any) -> dict[str, Any]:
    """The request's calibration."""
    usual = {"samples": 512, "max_seq_len": 512, "batch_size": 1, "seed": 1234}
    return {"data": str(data), **usual, **changes}


@pytest.fixture
def ask(stage: SimpleNamespace, llama: Path, tmp_path: Path) -> Ask:
    """Read a request with changes, as quantise.py does."""

    def read(**changes: Any) -> Any:
        (tmp_path / "R.json").write_text(json.dumps(request(llama, **changes)), encoding="utf-8")
        asked = stage.request.read_request(tmp_path / "R.json")
        supported = stage.checkpoint.SupportedModels(
            "tensorrt_llm", ("LlamaForCausalLM",), ("default",)
        )
        facts = stage.checkpoint.inspect_checkpoint(llama, supported)
        return stage.choices.read_choices(asked, facts)

    return read


def refused(stage: SimpleNamespace, call: Callable[[], object]) -> str:
    """Problem and remedy of a call that must refuse."""
    with pytest.raises(stage.problems.BuildError) as caught:
        call()
    assert caught.value.remedy.endswith(".")
    return f"{caught.value.problem}\n{caught.value.remedy}"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param(
            {"precision": "int8"},
            ["no precision 'int8'", "int8_sq, int8_wo"],
            id="precision-is-known",
        ),
        pytest.param(
            {"target": None}, ["has no target", "engine.target.world"], id="target-is-given"
        ),
        pytest.param(
            {"world": "engines"},
            ["engine.target.world is 'engines', expected one of engine, pytorch"],
            id="world-is-known",
        ),
        pytest.param(
            {"precision": "int8_sq", "world": "pytorch"},
            ["int8_sq has no execution path", "Set engine.precision to fp8, or", "to engine"],
            id="smoothquant-needs-the-engine-world",
        ),
        pytest.param(
            {"precision": "int4_wo", "world": "pytorch"},
            ["int4_wo has no execution path", "Set engine.precision to int4_awq"],
            id="int4-by-rows-needs-the-engine-world",
        ),
        pytest.param(
            {"kv_cache_dtype": "int8", "world": "pytorch"},
            ["kv_cache_dtype int8 has no execution path", "to fp8"],
            id="int8-kv-cache-needs-the-engine-world",
        ),
        pytest.param(
            {"kv_cache_dtype": "fp16"},
            ["kv_cache_dtype is 'fp16' (did you mean fp8?)"],
            id="kv-cache-type-is-known",
        ),
        pytest.param(
            {"options": {"awq_blocksize": 64}},
            ["'awq_blocksize' (did you mean awq_block_size?)"],
            id="option-is-known",
        ),
        pytest.param(
            {"options": {"awq_block_size": 64}},
            ["is for int4_awq and w4a8_awq"],
            id="awq-block-size-is-for-awq",
        ),
        pytest.param(
            {"options": {"awq_block_size": 32}, "precision": "int4_awq"},
            ["awq_block_size is 32", "64 or 128"],
            id="awq-block-size-has-kernels",
        ),
        pytest.param(
            {"options": {"smoothquant_alpha": 0.5}},
            ["which is for int8_sq; the precision is fp8"],
            id="smoothquant-alpha-is-for-smoothquant",
        ),
        pytest.param(
            {"options": {"smoothquant_alpha": 2}, "precision": "int8_sq"},
            ["smoothquant_alpha is 2", "from 0 to 1"],
            id="smoothquant-alpha-is-a-share",
        ),
        pytest.param(
            {"options": {"dtype": "float32"}},
            ["dtype is 'float32'", "float16 or bfloat16"],
            id="dtype-is-half",
        ),
        pytest.param(
            {"options": {"dtype": "bfloat16"}, "precision": "fp16"},
            ["the precision is fp16", "Use float16"],
            id="dtype-is-that-of-the-precision",
        ),
        pytest.param(
            {"limits": {"tp_size": 3}},
            ["tp_size is 3", "num_attention_heads (4)", "tp_size to 2"],
            id="heads-divide-by-tp-size",
        ),
        pytest.param(
            {"limits": {"tp_size": 4}},
            ["tp_size is 4", "num_key_value_heads (2)", "engine.tp_size to 2"],
            id="kv-heads-divide-by-tp-size",
        ),
        pytest.param(
            {"limits": {"pp_size": 4}},
            ["pp_size is 4", "num_hidden_layers (6)", "pp_size to 3"],
            id="layers-divide-by-pp-size",
        ),
        pytest.param(
            {"precision": "int4_awq", "limits": {"tp_size": 2}},
            ["a block of 128 weights does not divide the attention's width of a rank (64)"],
            id="awq-blocks-divide-a-rank",
        ),
        pytest.param(
            {"calibration": calibration(PROMPTS, samples=15)},
            ["samples is 15", "fewer than 16", "samples to 16 or more"],
            id="calibration-has-enough-samples",
        ),
        pytest.param(
            {"calibration": None},
            ["fp8 needs text", "engine.calibration.data"],
            id="activations-need-calibration",
        ),
        pytest.param(
            {"calibration": None, "precision": "fp16", "kv_cache_dtype": "fp8"},
            ["the KV cache needs text"],
            id="kv-cache-needs-calibration",
        ),
    ],
)
def test_a_request_is_refused(
    stage: SimpleNamespace, ask: Ask, changes: dict[str, Any], expected: list[str]
) -> None:
    text = refused(stage, lambda: ask(**changes))
    for part in expected:
        assert part in text


def test_what_a_request_leaves_open(ask: Ask, llama: Path) -> None:
    choices = ask(precision="int8_sq")
    assert (choices.dtype, choices.kv_cache_dtype, choices.tp_size) == ("float16", None, 1)
    assert choices.calibration.samples == 512
    assert ask(precision="bf16").dtype == "bfloat16"
    assert ask(precision="fp16").calibration is None
    (llama / "config.json").write_text(json.dumps(MODEL | {"dtype": "bfloat16"}), encoding="utf-8")
    assert ask().dtype == "bfloat16"
    assert ask(options={"dtype": "float16"}).dtype == "float16"


def test_awq_takes_32_samples_at_most(ask: Ask) -> None:
    assert ask(precision="int4_awq").calibration.samples == 32
    few = calibration(PROMPTS, samples=20)
    assert ask(precision="w4a8_awq", calibration=few).calibration.samples == 20


def test_prompts_calibrate_where_nothing_else_is_given(ask: Ask) -> None:
    evaluation = {"prompts": str(PROMPTS), "max_tokens": 8}
    chosen = ask(calibration=None, evaluation=evaluation).calibration
    assert (chosen.data, chosen.samples, chosen.seed) == (PROMPTS, 512, 1234)


def test_a_unified_checkpoint_is_not_split(ask: Ask) -> None:
    assert ask(world="pytorch", limits={"tp_size": 8}).tp_size == 8


class Letters:
    """A tokenizer of one id per letter."""

    def encode(self, text: str, *, add_special_tokens: bool) -> SimpleNamespace:
        return SimpleNamespace(ids=[0] * add_special_tokens + [ord(letter) for letter in text])


def read(stage: SimpleNamespace, data: Path, **changes: Any) -> list[str]:
    asked = stage.request_types.RequestedCalibration(
        **{**calibration(data), "data": data, **changes}
    )
    samples = stage.calibration.read_samples(asked, Letters())
    return ["".join(map(chr, ids[1:])) for ids in samples]


def lines(name: str, count: int) -> str:
    return "".join(f"{name}{number}\n\n" for number in range(count))


def test_calibration_texts(stage: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(lines("é", 20), encoding="utf-8")
    assert read(stage, tmp_path / "a.txt") == [f"é{number}" for number in range(20)]
    rows = [{"text": "t"}, {"text_input": "q:", "text_output": " a"}, {"text_input": "q"}] * 6
    content = "\n".join(json.dumps(row) for row in rows)
    (tmp_path / "b.jsonl").write_text(content, encoding="utf-8")
    assert read(stage, tmp_path / "b.jsonl") == ["t", "q: a", "q"] * 6
    (tmp_path / "c.md").write_text("not data", encoding="utf-8")
    assert len(read(stage, tmp_path)) == 38


def test_the_seed_chooses_the_samples(stage: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(lines("s", 100), encoding="utf-8")
    first, again, other = (
        read(stage, tmp_path / "a.txt", samples=16, seed=seed) for seed in (1, 1, 2)
    )
    assert first == again
    assert len(set(first)) == 16
    assert set(first) != set(other)


def test_samples_are_cut_and_batched_by_length(stage: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(lines("s", 20), encoding="utf-8")
    assert set(read(stage, tmp_path / "a.txt", max_seq_len=2)) == {"s"}
    samples = [[1, 2], [3], [4, 5], [6, 7]]
    assert stage.calibration.group_by_length(samples, 2) == [[[3]], [[1, 2], [4, 5]], [[6, 7]]]


def test_fewer_samples_than_asked_for_are_told(
    stage: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text(lines("s", 17), encoding="utf-8")
    read(stage, tmp_path / "a.txt")
    assert "calibrates on 17 samples, all of the data (512 requested)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.txt", b"", ["holds 0 samples", "at least 16 are needed (512 requested)"]),
        ("a.txt", b"\n".join([b"x"] * 15), ["holds 15 samples"]),
        ("a.txt", b"\xff\n", ["is not UTF-8"]),
        ("a.txt", None, ["cannot be read: No such file"]),
        ("a.jsonl", b'{"text": "x"}\n{"text": ', ["a.jsonl:2: is not valid JSON"]),
        ("a.jsonl", b'{"texts": "x"}\n', ["a.jsonl:1: has no text to calibrate on"]),
        ("a.jsonl", b'["x"]\n', ["a.jsonl:1: has no text"]),
        ("data/readme.md", b"x", ["the folder holds no calibration data (.txt, .jsonl, .parquet)"]),
    ],
)
def test_calibration_data_are_refused(
    stage: SimpleNamespace, tmp_path: Path, name: str, content: bytes | None, expected: list[str]
) -> None:
    file = tmp_path / name
    if content is not None:
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content)
    data = file.parent if file.parent != tmp_path else file
    text = refused(stage, lambda: read(stage, data))
    for part in expected:
        assert part in text


def test_parquet_needs_pyarrow(
    stage: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # as if it were not installed
    text = refused(stage, lambda: read(stage, tmp_path / "a.parquet"))
    assert "has no pyarrow to read it" in text
    assert "JSON lines" in text


def run(tmp_path: Path, asked: dict[str, Any], path: str = "") -> tuple[int, dict[str, Any], str]:
    """Run quantise.py as the host does, with an interpreter that has nothing of its libraries."""
    (tmp_path / "R.json").write_text(json.dumps(asked), encoding="utf-8")
    files = ["--request", str(tmp_path / "R.json"), "--result", str(tmp_path / "S.json")]
    done = subprocess.run(
        [sys.executable, "-S", str(BUILDER / "quantise.py"), *files],
        cwd=tmp_path,
        env={"LC_ALL": "C", "PYTHONPATH": path},
        capture_output=True,
        check=False,
    )
    result = json.loads((tmp_path / "S.json").read_text(encoding="utf-8"))
    return done.returncode, result, done.stderr.decode()


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def cut(folder: Path) -> None:
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(20)


def edit(**changes: Any) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "config.json").write_text(json.dumps(MODEL | changes), encoding="utf-8")

    return write


@pytest.mark.parametrize(
    ("break_it", "expected"),
    [
        (pickled, "as Python pickles only (pytorch_model.bin)"),
        (cut, "is half-downloaded"),
        (edit(architectures=["LlamaForCausalLm"]), "(did you mean LlamaForCausalLM?)"),
        (edit(rope_scaling={"rope_type": "yarn", "factor": 4.0}), "scales positions by 'yarn'"),
        (edit(quantization_config={"quant_method": "awq"}), "are quantised already (awq)"),
    ],
)
def test_a_broken_checkpoint_is_a_failed_result(
    llama: Path, tmp_path: Path, break_it: Callable[[Path], None], expected: str
) -> None:
    break_it(llama)
    code, result, errors = run(tmp_path, request(llama))
    assert (code, result["status"]) == (1, "failed")
    assert expected in result["problem"]
    assert "Traceback" not in errors


def test_an_old_modelopt_is_refused(llama: Path, tmp_path: Path) -> None:
    metadata = tmp_path / "packages" / "nvidia_modelopt-0.37.0.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Name: nvidia-modelopt\nVersion: 0.37.0\n", encoding="utf-8")
    _, result, _ = run(tmp_path, request(llama), str(tmp_path / "packages"))
    assert "has nvidia-modelopt 0.37.0, and this stage needs 0.47 or newer" in result["problem"]
    assert "runner venv" in result["remedy"]


def test_no_modelopt_at_all_is_an_incomplete_environment(llama: Path, tmp_path: Path) -> None:
    _, result, _ = run(tmp_path, request(llama))
    assert "environment is incomplete" in result["problem"]


def test_builder_toml_agrees_with_the_code(stage: SimpleNamespace) -> None:
    described = tomllib.loads((BUILDER / "builder.toml").read_text(encoding="utf-8"))
    assert described["precisions"] == list(stage.recipes.RECIPES)
    assert described["kv_cache_dtypes"] == list(stage.recipes.KV_BITS)
    assert described["architectures"] == list(stage.recipes.ARCHITECTURES)
    for recipe in stage.recipes.RECIPES.values():
        assert {recipe.instead, recipe.higher} <= set(stage.recipes.RECIPES)


def test_requirements_are_pinned() -> None:
    text = (BUILDER / "requirements.txt").read_text(encoding="utf-8")
    pins = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert all("==" in line for line in pins)
    assert "nvidia-modelopt==0.47.0" in pins
    assert not any(line.startswith(("torch", "tritonctl")) for line in pins)
