# SPDX-License-Identifier: Apache-2.0
"""TensorRT-LLM's models: what is reported, where, and what is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.check_models.tensorrt_llm import (
    ARGUMENTS,
    PARAMETERS,
    Files,
    engine,
    llmapi_model,
    own_model,
    trtllm_model,
)
from tests.examples import examples
from tests.unit.checks.repositories import put
from tritonctl.checks.checker import check_repository
from tritonctl.checks.config.yaml_file import read_yaml_file
from tritonctl.checks.findings import CheckFinding
from tritonctl.checks.repository import CheckTarget
from tritonctl.checks.rules import RULES
from tritonctl.engines.builds.engine import build_engine
from tritonctl.formats.trtllm_backend import DEMANDED_PARAMETERS, PARAMETERS_WITH_DEFAULT
from tritonctl.formats.trtllm_backend import PARAMETERS as BACKEND_PARAMETERS
from tritonctl.formats.trtllm_engine import read_engine
from tritonctl.host.progress import Silent
from tritonctl.repository import tensorrtllm
from tritonctl.repository.publish import render

OURS = [rule for rule in RULES.values() if rule.family == "tensorrt_llm"]

if TYPE_CHECKING:
    from tests.unit.conftest import Sandbox

SERVER = CheckTarget("2.51.0")
FUZZ = examples(60, HealthCheck.function_scoped_fixture)
KEYS = st.sampled_from(
    ["build_config", "pretrained_config", "mapping", "plugin_config", "version", "world_size"]
)
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner),
)


def reported(folder: Path, files: Files, target: CheckTarget = SERVER) -> list[CheckFinding]:
    """What this family says of a repository."""
    put(folder, files)
    return list(check_repository(folder, target, rules=OURS).findings)


def one(folder: Path, files: Files, target: CheckTarget = SERVER) -> CheckFinding:
    """The one thing it says."""
    [finding] = reported(folder, files, target)
    return finding


def test_the_whole_template_is_clean(tmp_path: Path) -> None:
    """Every parameter that NVIDIA's template has, filled in sensibly."""
    sensible = {
        **dict.fromkeys(
            (k for k, w in PARAMETERS_WITH_DEFAULT.items() if w.expected_format == "true or false"),
            "true",
        ),
        **dict.fromkeys(
            (
                k
                for k, w in PARAMETERS_WITH_DEFAULT.items()
                if w.expected_format == "a whole number"
            ),
            "1",
        ),
        **dict.fromkeys(
            (k for k, w in PARAMETERS_WITH_DEFAULT.items() if w.expected_format == "a number"),
            "0.5",
        ),
        "max_attention_window_size": "1024, 512",
        "gpu_device_ids": "0",
        "participant_ids": "1",
        "batch_scheduler_policy": "max_utilization",
        "decoding_mode": "top_k",
        "max_tokens_in_paged_kv_cache": "8192",
        "executor_worker_path": "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker",
        "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
        "TRITON_BATCH_STRATEGY_PATH": "/opt/batching.so",
    }
    assert reported(tmp_path, trtllm_model(sensible)) == []


def test_an_untouched_template_says_nothing_of_its_own(tmp_path: Path) -> None:
    """Placeholders have a finding already: TC109."""
    empty = {key: f"${{{key}}}" for key in set(BACKEND_PARAMETERS) - set(PARAMETERS)}
    filled = {key: f"${{{key}}}" for key in PARAMETERS}
    assert reported(tmp_path, trtllm_model({**empty, **filled})) == []


@pytest.mark.parametrize(
    ("parameters", "backend", "rule", "words"),
    [
        ({"gpt_model_type": None}, "tensorrtllm", "TC701", "requires it"),
        ({"gpt_model_type": "Inflight_Batching"}, "tensorrtllm", "TC701", "did you mean"),
        ({"gpt_model_type": "static"}, "python", "TC701", "unknown gpt_model_type"),
        ({"worker_path": "/x"}, "tensorrtllm", "TC705", "it is now called executor_worker_path"),
        ({"author": "us"}, "tensorrtllm", "TC705", "no parameter author, and ignores it"),
        ({"max_beam_widht": "1"}, "python", "TC705", "did you mean max_beam_width?"),
        ({"max_beam_width": "two"}, "tensorrtllm", "TC706", "the backend uses 1 instead"),
        ({"max_beam_width": "4 beams"}, "tensorrtllm", "TC706", "the backend uses 4 instead"),
        ({"max_beam_width": "4 beams"}, "python", "TC706", "the backend uses 1 instead"),
        (
            {"kv_cache_free_gpu_mem_fraction": "0.5f"},
            "tensorrtllm",
            "TC706",
            "the backend uses 0.5 instead",
        ),
        (
            {"gpu_device_ids": "all"},
            "tensorrtllm",
            "TC706",
            "the backend uses all visible GPUs instead",
        ),
        ({"decoding_mode": "topk"}, "tensorrtllm", "TC706", "did you mean top_k?"),
        ({"decoding_mode": "topk"}, "python", "TC707", "did you mean top_k?"),
        ({"batch_scheduler_policy": "evict"}, "python", "TC707", "guaranteed_no_evict"),
        ({"enable_kv_cache_reuse": "on"}, "python", "TC706", "the backend uses false instead"),
        ({"kv_cache_free_gpu_mem_fraction": "90"}, "tensorrtllm", "TC707", "below 1"),
        ({"max_beam_width": "0"}, "tensorrtllm", "TC707", "1 or more"),
        ({"decoding_mode": "lookahead"}, "tensorrtllm", "TC708", "lookahead_window_size"),
        ({"guided_decoding_backend": "outlines"}, "python", "TC709", "not outlines"),
        ({"gpu_device_ids": "0;1;"}, "tensorrtllm", "TC711", "2 sets of GPUs for 1 instance"),
    ],
)
def test_parameters(
    tmp_path: Path, parameters: dict[str, str | None], backend: str, rule: str, words: str
) -> None:
    """Both readers of the template, which do not refuse the same."""
    finding = one(tmp_path, trtllm_model(parameters, backend=backend))
    assert finding.rule == rule
    assert words in f"{finding.message} {finding.fix}"


@pytest.mark.parametrize(
    ("parameters", "backend"),
    [
        ({"gpt_model_type": "V1 "}, "tensorrtllm"),
        ({"gpt_model_type": "INFLIGHT_BATCHING"}, "python"),
        ({"enable_kv_cache_reuse": "tRUE"}, "python"),
        ({"decoding_mode": "auto"}, "python"),
        ({"decoding_mode": "lookahead"}, "python"),
        ({"my_own_setting": "1"}, "python"),
        ({"EXECUTION_ENV_PATH": "/opt/env.tar.gz"}, "python"),
    ],
)
def test_what_only_the_python_model_takes(
    tmp_path: Path, parameters: dict[str, str], backend: str
) -> None:
    """A model.py may be one's own; its reader is laxer. The C++ backend takes none of this."""
    rules = {
        finding.rule for finding in reported(tmp_path, trtllm_model(parameters, backend=backend))
    }
    assert rules == ({"TC701"} if backend == "tensorrtllm" else set())


def test_the_place_of_a_parameter(tmp_path: Path) -> None:
    """Line, column and the text that is meant."""
    files = trtllm_model({"max_beam_width": "4"}, engine())
    finding = one(tmp_path / "a", files)
    assert finding.text[finding.column - 1 : finding.end - 1] == '"4"'
    assert finding.path.endswith("m/config.pbtxt")
    finding = one(tmp_path / "b", trtllm_model({"enable_chunked_contxt": "true"}))
    assert finding.fix == "did you mean enable_chunked_context?"
    assert finding.edits == ()  # the parameter is ignored today: naming it right changes the model


def test_demanded_parameters(tmp_path: Path) -> None:
    """By the target, or else by the tensors of a template that knows guided decoding."""
    without = trtllm_model(dict.fromkeys(DEMANDED_PARAMETERS))
    finding = one(tmp_path / "new", without, CheckTarget("2.70.0"))
    assert finding.rule == "TC704"
    assert "xgrammar_tokenizer_info_path" in finding.message
    assert reported(tmp_path / "old", without, CheckTarget("2.51.0")) == []
    assert reported(tmp_path / "unknown", without, CheckTarget()) == []
    guide = 'input [ { name: "guided_decoding_guide" data_type: TYPE_STRING dims: [ 1 ] } ]\n'
    hinting = trtllm_model(dict.fromkeys(DEMANDED_PARAMETERS), more=guide)
    assert one(tmp_path / "hinting", hinting, CheckTarget()).rule == "TC704"


@pytest.mark.parametrize("path", ["{}/m/1/engine", "/models/m/1/engine", "/srv/r/m/1/engine/"])
def test_engines_are_found(tmp_path: Path, path: str) -> None:
    """At their own place, or below the repository wherever the server has it."""
    parameters = {"gpt_model_path": path.format(tmp_path), "max_beam_width": "2"}
    assert one(tmp_path, trtllm_model(parameters, engine())).rule == "TC722"


@pytest.mark.parametrize("path", ["/models/other/1/engine", "/m/../m/1/engine", "m\\\\000/x", "e"])
def test_engines_that_cannot_be_seen(tmp_path: Path, path: str) -> None:
    """Of them nothing is said."""
    parameters = {"gpt_model_path": path, "max_beam_width": "2"}
    assert reported(tmp_path, trtllm_model(parameters, engine())) == []


def test_engine_files(tmp_path: Path) -> None:
    """None for a folder that holds something else; what stops it for one that cannot be read."""
    put(tmp_path, {"hf/config.json": '{"architectures": []}', **engine(2, folder="e")})
    assert read_engine(tmp_path / "hf") is None
    assert read_engine(tmp_path / "nowhere") is None
    found = read_engine(tmp_path / "e")
    assert found is not None
    assert (found.world_size, set(found.ranks), found.number("max_seq_len")) == (2, {0, 1}, 2048)
    (tmp_path / "e" / "config.json").write_bytes(b"\xff\xfe")
    broken = read_engine(tmp_path / "e")
    assert broken is not None
    assert broken.read_error


@given(junk=JUNK)
@FUZZ
def test_any_config_of_an_engine(tmp_path: Path, junk: object) -> None:
    """Whatever stands in config.json is a finding at most."""
    files = trtllm_model({"max_beam_width": "4"}, engine())
    put(tmp_path, {**files, "m/1/engine/config.json": json.dumps(junk)})
    built = {"build_config": junk, "pretrained_config": junk, "version": junk}
    check_repository(tmp_path, CheckTarget("2.71.0", gpus=()), rules=OURS)
    put(tmp_path, {"m/1/engine/config.json": json.dumps(built)})
    check_repository(tmp_path, CheckTarget("2.71.0", gpus=()), rules=OURS)


def test_gpus(tmp_path: Path) -> None:
    """Of the target where it is known, of a set, of the ranks."""
    two = engine(2)
    assert reported(tmp_path / "unknown", trtllm_model({}, two)) == []
    finding = one(tmp_path / "one", trtllm_model({}, two), CheckTarget("2.51.0", gpus=(1 << 36,)))
    assert finding.message.startswith("the engine is for 2 GPUs (tp_size × pp_size)")
    finding = one(tmp_path / "ranks", trtllm_model({"participant_ids": "1,2,3"}, two))
    assert finding.message.startswith("participant_ids gives 3 ranks to an instance")


def test_kv_cache_reuse_by_default_is_not_told(tmp_path: Path) -> None:
    """Nobody asked for it."""
    assert reported(tmp_path, trtllm_model({}, engine(use_paged_context_fmha=False))) == []


@pytest.mark.parametrize(
    ("version", "target", "rules"),
    [
        ("1.2.1", "2.71.0", ["TC742"]),
        ("1.2.1", "2.68.0", []),
        ("1.2.0", "2.68.0", ["TC740"]),
        ("1.2.1rc3", "2.68.0", ["TC740"]),
        ("1.0.3", "2.63.0", []),  # the image's is 1.0.3.2510
        ("0.17.0", "2.55.0", []),  # 0.17.0.post1
        ("1.2.1", "2.72.0", ["TC741"]),
        ("1.2.1", "2.99.0", ["TC741"]),
        ("1.2.1", "2.44.0", []),  # older than the table
        ("1.2.1", None, []),
    ],
)
def test_releases(tmp_path: Path, version: str, target: str | None, rules: list[str]) -> None:
    """An engine runs with the release that compiled it, and with none after 26.07."""
    found = reported(tmp_path, trtllm_model({}, engine(version=version)), CheckTarget(target))
    assert [finding.rule for finding in found] == rules


def test_the_release_that_fits(tmp_path: Path) -> None:
    """It is named."""
    files = trtllm_model({}, engine(version="1.1.0"))
    finding = one(tmp_path, files, CheckTarget("2.70.0"))
    assert finding.fix.startswith("serve it with release 26.02 or 26.01, or rebuild it")


@given(text=st.text(alphabet="&*a!-:{}[] \n\t'\"|>?,#0.<", max_size=60))
@FUZZ
def test_any_model_yaml(tmp_path: Path, text: str) -> None:
    """Aliases in circles, tags, tabs: read, or told."""
    put(tmp_path, llmapi_model(text))
    check_repository(tmp_path, SERVER, rules=OURS)


def test_yaml_is_never_made_into_objects(tmp_path: Path) -> None:
    """A tag that would run something stays a tag; a billion laughs stay few."""
    laughs = "a: &a [x]\n" + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(20)
    )
    (tmp_path / "laughs").write_text(laughs, encoding="utf-8")
    assert read_yaml_file(tmp_path / "laughs", "laughs", 1 << 20).root is not None
    (tmp_path / "tag").write_text("a: !!python/object/apply:os.abort []\n", encoding="utf-8")
    assert read_yaml_file(tmp_path / "tag", "tag", 1 << 20).text("a") is None
    assert read_yaml_file(tmp_path, "folder", 1 << 20).read_error == "it is not a file"
    assert read_yaml_file(tmp_path / "laughs", "laughs", 8).read_error == "it has over 0 MiB"


def test_quantised_checkpoints_of_llmapi(tmp_path: Path) -> None:
    """Where `model` can be seen from here."""
    arguments = ARGUMENTS.replace("TinyLlama/TinyLlama-1.1B-Chat-v1.0", "/models/m/1/checkpoint")
    quantised = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "INT8"}}
    files = llmapi_model(arguments)
    files |= {"m/1/checkpoint/hf_quant_config.json": json.dumps(quantised)}
    finding = one(tmp_path, files)
    assert (finding.rule, finding.line) == ("TC744", 1)
    assert finding.fix == "quantise it again as one of fp8, nvfp4"


def test_replaced_engines(tmp_path: Path) -> None:
    """Ours remember what they were rendered for."""
    finding = one(tmp_path / "version", own_model({}, engine(version="1.1.0")), CheckTarget())
    assert "rendered for TensorRT-LLM 1.2.1" in finding.message
    finding = one(tmp_path / "size", own_model({"max_num_seqs": "9"}, engine()))
    assert finding.message.startswith("max_num_seqs is 9, and the engine runs 8")
    reuse = own_model({"kv_cache_config": '{"enable_block_reuse": true}'})
    finding = one(tmp_path / "reuse", reuse | engine(use_paged_context_fmha=False))
    assert finding.rule == "TC731"
    pytorch = own_model({"world": "pytorch"}) | engine(version="1.1.0")
    assert reported(tmp_path / "pytorch", pytorch) == []


def test_what_render_writes_is_clean(sandbox: Sandbox) -> None:
    """The configuration for NVIDIA's backend, for the release that demands most."""
    script = sandbox.root / "builders" / "scripted" / "build.py"
    text = script.read_text(encoding="utf-8")
    recorded = next(line for line in text.splitlines() if line.lstrip().startswith('"runtime":'))
    script.write_text(text.replace(recorded, '        "runtime": {"world": "engine"},'))
    sandbox.serving["backend"] = tensorrtllm.BACKEND
    project = sandbox.load()
    build_engine(project, "speller", Silent())
    render(project, Silent())
    found = check_repository(project.repository, CheckTarget("2.70.0"), rules=OURS)
    assert found.models == 1
    assert found.findings == ()


def test_gpus_by_number(tmp_path: Path) -> None:
    """They are counted from 0."""
    two = CheckTarget("2.51.0", gpus=(1 << 36, 1 << 36))
    assert reported(tmp_path / "there", trtllm_model({"gpu_device_ids": "1"}, engine()), two) == []
    finding = one(tmp_path / "beyond", trtllm_model({"gpu_device_ids": "2"}, engine()), two)
    assert (
        finding.message == "gpu_device_ids names GPU 2, and the target has 2 GPUs, counted from 0"
    )


@pytest.mark.parametrize(
    ("build", "told_of"),
    [
        ({"max_num_tokens": 8192, "max_seq_len": 8192}, False),
        ({"max_num_tokens": 2047, "max_seq_len": 2048}, False),
        ({"max_num_tokens": 1024, "max_seq_len": 2048}, True),
        ({"max_num_tokens": 1024, "max_seq_len": 2048, "remove_input_padding": False}, None),
        ({"max_num_tokens": None, "max_seq_len": 2048}, False),
    ],
)
def test_prompts_over_a_step(tmp_path: Path, build: dict[str, Any], told_of: bool) -> None:
    """Only where one step must take the whole prompt."""
    rules = [finding.rule for finding in reported(tmp_path, trtllm_model({}, engine(**build)))]
    assert ("TC728" in rules) == bool(told_of)


def test_missing_artefacts(tmp_path: Path) -> None:
    """All of them in one finding; nothing of a world that is not known."""
    finding = one(tmp_path / "a", own_model({}, {}))
    assert finding.message.startswith("version 1 has no engine and no llm_args.json and no token")
    assert reported(tmp_path / "b", own_model({"world": "${world}"}, {})) == []
    assert reported(tmp_path / "c", own_model({"world": "pytorch"})) == []


def test_the_cache_type_of_an_engine(tmp_path: Path) -> None:
    """It was compiled in."""
    assert one(tmp_path, own_model({"kv_cache_config": '{"dtype": "fp8"}'})).rule == "TC745"


@pytest.mark.parametrize(
    ("target", "rules"), [("2.51.0", []), ("2.70.0", []), ("2.66.0", ["TC740"]), ("2.60.0", [])]
)
def test_releases_of_our_own_engine(tmp_path: Path, target: str, rules: list[str]) -> None:
    """A release too old for it cannot be where TensorRT-LLM comes from."""
    found = reported(tmp_path, own_model({}, engine(version="1.2.1")), CheckTarget(target))
    assert [finding.rule for finding in found] == rules


def test_an_environment_brings_its_own(tmp_path: Path) -> None:
    """So nothing is known of its TensorRT-LLM."""
    environment = {"EXECUTION_ENV_PATH": "/opt/env.tar.gz"}
    files = trtllm_model(environment, engine(version="1.0.0"), backend="python")
    assert reported(tmp_path, files | {"m/1/model.py": ""}, CheckTarget("2.70.0")) == []


def test_engines_for_several_machines(tmp_path: Path) -> None:
    """Each of them has its part of the files, and of the GPUs."""
    sixteen = engine(16)
    for rank in range(8, 16):
        del sixteen[f"m/1/engine/rank{rank}.engine"]
    eight = CheckTarget("2.51.0", gpus=(1 << 36,) * 8)
    assert reported(tmp_path / "a", trtllm_model({}, sixteen), eight) == []
    two = engine(2)
    del two["m/1/engine/rank1.engine"]
    assert reported(tmp_path / "b", trtllm_model({"num_nodes": "2"}, two)) == []
    assert one(tmp_path / "c", trtllm_model({}, two)).rule == "TC721"
    spread = llmapi_model(ARGUMENTS.replace("parallel_size: 1", "parallel_size: 16"))
    assert reported(tmp_path / "d", spread, eight) == []


def test_numbers_without_end(tmp_path: Path) -> None:
    """Python converts no more than 4,300 digits, the backend fewer."""
    huge = "9" * 5000
    parameters = {"max_beam_width": huge, "gpu_device_ids": huge, "num_nodes": huge}
    reported(tmp_path / "a", trtllm_model(parameters, engine()), CheckTarget("2.51.0", gpus=(1, 2)))
    arguments = ARGUMENTS.replace("parallel_size: 1", f"parallel_size: {huge}")
    reported(tmp_path / "b", llmapi_model(arguments.replace("size: 0", f"size: {huge}")))
    reported(
        tmp_path / "c",
        trtllm_model({}, engine(max_beam_width=1) | {f"m/1/rank{huge[:200]}.engine": ""}),
    )
