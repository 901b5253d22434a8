# SPDX-License-Identifier: Apache-2.0
"""From project and manifest to config.pbtxt: parameters, raw fields, refusals, golden files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tritonctl.engines.builds.engine import build_engine
from tritonctl.errors import ConfigurationError, RepositoryError
from tritonctl.host import bundled
from tritonctl.host.progress import Silent
from tritonctl.repository.pbtxt import parse_pbtxt
from tritonctl.repository.plan import RepositoryPlan, plan_repository
from tritonctl.repository.steps import step_models

if TYPE_CHECKING:
    from tests.unit.conftest import Sandbox

GOLDEN = Path(__file__).parent / "golden"


def _plan(built: Sandbox) -> RepositoryPlan:
    project = built.load()
    for name in project.models:
        build_engine(project, name, Silent())
    return plan_repository(project)


def _configs(built: Sandbox) -> dict[str, dict[str, Any]]:
    return {model.name: parse_pbtxt(model.config) for model in _plan(built).models}


def _parameters(config: dict[str, Any]) -> dict[str, str]:
    return {key: value["string_value"] for key, value in config["parameters"].items()}


@pytest.mark.parametrize(
    ("folder", "inline"), [(GOLDEN, False), (GOLDEN / "inline_detokenizer", True)]
)
def test_golden_files(built: Sandbox, update_golden: bool, folder: Path, inline: bool) -> None:
    """The models of the shipped ensemble, as protobuf; --update-golden rewrites them."""
    built.serving["inline_detokenizer"] = inline
    models = {model.name: model.config for model in _plan(built).models}
    if update_golden:
        folder.mkdir(exist_ok=True)
        for name, config in models.items():
            body = "".join(line for line in config.splitlines(True) if not line.startswith("#"))
            (folder / f"{name}.pbtxt").write_text(body, encoding="utf-8")
    golden = {file.stem: file.read_text(encoding="utf-8") for file in folder.glob("*.pbtxt")}
    assert {name: parse_pbtxt(text) for name, text in models.items()} == {
        name: parse_pbtxt(text) for name, text in golden.items()
    }


def test_composing_models_come_before_the_ensemble(built: Sandbox) -> None:
    """Triton may load as soon as a folder appears."""
    plan = _plan(built)
    assert [model.name for model in plan.models] == [
        "speller_tokenizer",
        "speller_engine",
        "speller_detokenizer",
        "speller",
    ]
    assert [b.name for b in plan.backends] == ["detokenizer", "openvino_engine", "tokenizer"]


@pytest.mark.parametrize("inline", [False, True])
def test_a_model_that_answers_once(built: Sandbox, inline: bool) -> None:
    """The ensemble's tensors, another transaction policy, and room for all that may wait."""
    built.serving.update(unary=True, inline_detokenizer=inline, queue={"max_queue_size": 9})
    configs = _configs(built)
    unary, ensemble = configs["speller_unary"], configs["speller"]
    assert [unary[side] for side in ("input", "output")] == [ensemble["input"], ensemble["output"]]
    assert unary["max_batch_size"] == ensemble["max_batch_size"] == 1
    assert "model_transaction_policy" not in unary
    places = int(_parameters(configs["speller_engine"])["max_num_seqs"])
    assert _parameters(unary) == {"max_requests": str(places + 9 + 1)}


def test_header_names_tool_and_settings(built: Sandbox) -> None:
    """The first line is how a rendered folder is recognised; it changes with the settings."""
    first = _plan(built).models[0].config.splitlines()[0]
    assert first.startswith("# Rendered by tritonctl 0.1.0 for model speller (settings and engine ")
    built.serving["enable_prefix_caching"] = False
    assert _plan(built).models[0].config.splitlines()[0] != first


def test_files_of_each_model(built: Sandbox) -> None:
    """Code, shared code and only the artefact folders that the backend names."""
    files = {model.name: {target for _, target in model.files} for model in _plan(built).models}
    assert files["speller"] == set()
    engine, tokenizer = files["speller_engine"], files["speller_tokenizer"]
    assert {"model.py", "engine/openvino_model.xml", "engine/openvino_model.bin"} <= engine
    assert "tokenizer/tokenizer.json" in engine  # stop words are found in the decoded text
    assert {"model.py", "tokenizer/tokenizer.json"} <= tokenizer
    assert not any(name.startswith("engine/") for name in tokenizer)
    assert {n for n in engine if n.startswith("textlib/")}
    assert all(source.is_file() for model in _plan(built).models for source, _ in model.files)


def test_engine_parameters_come_from_the_manifest(built: Sandbox) -> None:
    """What the builder decided is passed on, as strings; lists and mappings as JSON."""
    parameters = _parameters(_configs(built)["speller_engine"])
    assert parameters["max_seq_len"] == "64"
    assert parameters["max_input_len"] == "63"
    assert parameters["max_num_seqs"] == "4"
    assert json.loads(parameters["eos_token_ids"]) == [1]
    assert parameters["block_size"] == "32"
    assert parameters["enable_prefix_caching"] == "true"
    assert json.loads(parameters["properties"]) == {"INFERENCE_PRECISION_HINT": "f32"}


@pytest.mark.parametrize(
    ("max_seq_len", "max_batch_size", "kv_cache_tokens", "blocks"),
    [
        (64, 4, None, 8),  # two blocks of 32 per sequence
        (65, 4, None, 12),  # one token more, one block more for each of the four
        (1, 1, None, 1),
        (31, 3, None, 3),
        (64, 4, 64, 2),
        (64, 4, 65, 3),
        (64, 4, 1000, 32),
    ],
)
def test_kv_blocks(
    built: Sandbox,
    max_seq_len: int,
    max_batch_size: int,
    kv_cache_tokens: int | None,
    blocks: int,
) -> None:
    """Rounded up per sequence, or once when the project gives the pool's size."""
    built.engine.update(max_seq_len=max_seq_len, max_batch_size=max_batch_size)
    built.serving["kv_cache_tokens"] = kv_cache_tokens
    parameters = _parameters(_configs(built)["speller_engine"])
    assert parameters["num_kv_blocks"] == str(blocks)


def test_kv_cache_smaller_than_one_sequence(built: Sandbox) -> None:
    """Could never answer the longest prompt: refused with the smallest size that could."""
    built.serving["kv_cache_tokens"] = 63
    with pytest.raises(ConfigurationError, match="kv_cache_tokens 63 is less than one") as caught:
        _plan(built)
    assert caught.value.remedy.startswith("set it to 64 or more")


def test_raw_config_reaches_its_step_only(built: Sandbox) -> None:
    """Merged last, deeply, into the step it names."""
    before = _configs(built)
    built.serving["config"] = {
        "engine": {"version_policy": {"latest": {"num_versions": 2}}},
        "tokenizer": {"dynamic_batching": {"preserve_ordering": True}},
        "ensemble": {"parameters": {"owner": {"string_value": "me"}}},
        "detokenizer": {},
    }
    after = _configs(built)
    assert after["speller_engine"]["version_policy"] == {"latest": {"num_versions": 2}}
    assert after["speller_tokenizer"]["dynamic_batching"] == {"preserve_ordering": True}
    assert _parameters(after["speller"]) == {"owner": "me"}
    assert after["speller_detokenizer"] == before["speller_detokenizer"]
    assert after["speller_engine"]["parameters"] == before["speller_engine"]["parameters"]


def test_raw_config_of_an_unknown_step(built: Sandbox) -> None:
    """The steps that exist are listed."""
    built.serving["config"] = {"engin": {}}
    with pytest.raises(ConfigurationError, match="unknown step `engin`") as caught:
        _plan(built)
    assert caught.value.problem.startswith("models.speller.serving.config: ")
    assert caught.value.remedy == "steps: tokenizer, engine, detokenizer, ensemble"


def test_raw_field_that_triton_does_not_know(built: Sandbox) -> None:
    """Refused by Triton's own schema with the nearest field."""
    built.serving["config"] = {"engine": {"max_batch_sise": 4}}
    with pytest.raises(ConfigurationError, match="model speller_engine: ") as caught:
        _plan(built)
    assert "did you mean `max_batch_size`?" in caught.value.remedy


def test_raw_config_cannot_rename(built: Sandbox) -> None:
    """Triton insists that the name is the folder's."""
    built.serving["config"] = {"ensemble": {"name": "other"}}
    with pytest.raises(ConfigurationError, match="cannot rename `speller`"):
        _plan(built)


def test_instances_and_batching(built: Sandbox) -> None:
    """instance_group is the engine's; the other steps stay at one instance each."""
    built.serving["instance_group"] = [{"kind": "KIND_CPU", "count": 2}]
    built.serving["dynamic_batching"] = {"max_queue_delay_microseconds": 50}
    configs = _configs(built)
    assert configs["speller_engine"]["instance_group"] == [{"kind": "KIND_CPU", "count": 2}]
    assert "max_queue_delay_microseconds" not in configs["speller_engine"]["dynamic_batching"]
    for step in ("tokenizer", "detokenizer"):
        config = configs[f"speller_{step}"]
        assert config["instance_group"] == [{"kind": "KIND_CPU", "count": 1}]
        assert config["dynamic_batching"] == {"max_queue_delay_microseconds": "50"}


def test_inline_detokenizer_folds_the_last_step(built: Sandbox) -> None:
    """Two steps, the same public tensors; the engine has the detokenizer's outputs."""
    before = _configs(built)
    built.serving["inline_detokenizer"] = True
    plan = _plan(built)
    after = {model.name: parse_pbtxt(model.config) for model in plan.models}
    assert list(after) == ["speller_tokenizer", "speller_engine", "speller"]
    public, engine = after["speller"], after["speller_engine"]
    assert [public[key] for key in ("input", "output", "max_batch_size")] == [
        before["speller"][key] for key in ("input", "output", "max_batch_size")
    ]
    assert engine["output"] == before["speller_detokenizer"]["output"]
    assert engine["input"] == before["speller_engine"]["input"]
    assert _parameters(engine) == _parameters(before["speller_engine"]) | _parameters(
        before["speller_detokenizer"]
    ) | {"inline_detokenizer": "true"}
    assert after["speller_tokenizer"] == before["speller_tokenizer"]
    # What the engine now does needs what the detokenizer needs.
    assert [b.name for b in plan.backends] == ["detokenizer", "openvino_engine", "tokenizer"]


def test_inlined_step_is_no_step(built: Sandbox) -> None:
    """Raw settings for it would be lost."""
    built.serving.update(inline_detokenizer=True, config={"detokenizer": {}})
    with pytest.raises(ConfigurationError, match="unknown step `detokenizer`") as caught:
        _plan(built)
    assert caught.value.remedy == "steps: tokenizer, engine, ensemble"


def test_fused_is_one_model(built: Sandbox) -> None:
    """The engine has the public tensors, and the files and parameters of every step."""
    before = _configs(built)
    built.serving["fused"] = True
    plan = _plan(built)
    [model] = plan.models
    assert (model.name, model.owner) == ("speller", "speller")
    config = parse_pbtxt(model.config)
    assert config["backend"] == "python"
    assert config["model_transaction_policy"] == {"decoupled": True}
    for side in ("input", "output"):
        wanted = {(t["name"], t["data_type"], *t["dims"]) for t in before["speller"][side]}
        assert {(t["name"], t["data_type"], *t["dims"]) for t in config[side]} == wanted
    steps = [_parameters(before[f"speller_{step}"]) for step in ("tokenizer", "engine")]
    names = {
        "request_output_len": "max_tokens",
        "streaming": "stream",
        "runtime_top_k": "top_k",
        "runtime_top_p": "top_p",
    }
    assert _parameters(config) == steps[0] | steps[1] | {
        "fused": "true",
        "inline_tokenizer": "true",
        "inline_detokenizer": "true",
        "public_names": json.dumps(names, sort_keys=True),
    }
    assert config["instance_group"] == before["speller_engine"]["instance_group"]
    files = {name for _, name in model.files}
    assert {"model.py", "tokenizer/tokenizer.json", "textlib/triton/prompts.py"} <= files
    # Its stub needs what every step needs.
    assert [b.name for b in plan.backends] == ["detokenizer", "openvino_engine", "tokenizer"]


@pytest.mark.parametrize("serving", [{}, {"inline_detokenizer": True}, {"fused": True}], ids=str)
def test_what_a_model_is_served_as_is_known_before(
    built: Sandbox, serving: dict[str, bool]
) -> None:
    """Alerts, promises and sizes ask for the steps; the plan has them."""
    built.serving.update(serving)
    served = {"speller", *step_models(built.load(), "speller").values()}
    assert served == {model.name for model in _plan(built).models}


def test_fused_with_a_front_that_answers_once(built: Sandbox) -> None:
    """It asks the fused model by its name."""
    built.serving.update(fused=True, unary=True)
    assert [model.name for model in _plan(built).models] == ["speller", "speller_unary"]


def test_steps_of_a_fused_model_take_no_settings(built: Sandbox) -> None:
    """Raw settings for them would be lost."""
    built.serving.update(fused=True, config={"tokenizer": {}})
    with pytest.raises(ConfigurationError, match="unknown step `tokenizer`") as caught:
        _plan(built)
    assert caught.value.remedy == "steps: engine"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            "backend: detokenizer",
            "backend: sheller",
            "the backend openvino_engine cannot do the work of sheller",
        ),
        (
            "backend: engine\n",
            "backend: openvino_engine\n",
            "the task text_generation has 0 steps with the backend engine, expected one",
        ),
        (
            "finish_reason: finish_reason\n",
            "finish_reason: reason\n",
            "the output reason is called finish_reason in its step",
        ),
    ],
)
def test_steps_that_cannot_be_fused(built: Sandbox, old: str, new: str, problem: str) -> None:
    """Refused, with the reason and the way round."""
    sheller = built.root / "python_backends" / "sheller"
    shutil.copytree(bundled.find("python_backends/detokenizer"), sheller)
    toml = (sheller / "backend.toml").read_text(encoding="utf-8")
    (sheller / "backend.toml").write_text(toml.replace('"detokenizer"', '"sheller"'))
    relative = "ensembles/text_generation.yaml"
    text = bundled.find(relative).read_text(encoding="utf-8")
    assert text.count(old) == 1
    text = text.replace(old, new)
    if "reason: reason" in new:
        text = text.replace("{name: finish_reason,", "{name: reason,")
    (built.root / "ensembles").mkdir(exist_ok=True)
    (built.root / relative).write_text(text, encoding="utf-8")
    built.serving["fused"] = True
    with pytest.raises(ConfigurationError) as caught:
        _plan(built)
    assert caught.value.problem.startswith("models.speller.serving.fused: ")
    assert problem in caught.value.problem
    assert "`fused: true`" in (caught.value.remedy or "")


PAD_ID = """
[[inputs]]
name = "pad_id"
data_type = "TYPE_INT32"
dims = [1]
optional = true

[[outputs]]
"""


def test_two_tensors_of_one_name_cannot_be_fused(built: Sandbox) -> None:
    """Two steps call different public tensors the same."""
    shutil.copytree(
        bundled.find("python_backends/openvino_engine"),
        built.root / "python_backends" / "openvino_engine",
    )
    _own(built, "python_backends/openvino_engine/backend.toml", "\n[[outputs]]\n", PAD_ID)
    ensemble = "ensembles/text_generation.yaml"
    _own(
        built,
        ensemble,
        "      streaming: stream\n",
        "      streaming: stream\n      pad_id: max_tokens\n",
    )
    built.serving["fused"] = True
    with pytest.raises(ConfigurationError, match="read both pad_id and max_tokens as pad_id"):
        _plan(built)


def _own(built: Sandbox, relative: str, old: str, new: str) -> None:
    """Give the project its own version of a content file."""
    source = bundled.find(relative).read_text(encoding="utf-8")
    assert source.count(old) == 1
    target = built.root / relative
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(source.replace(old, new), encoding="utf-8")


def test_engine_that_cannot_inline(built: Sandbox) -> None:
    """Refused by name, with the file that says so."""
    file = "python_backends/openvino_engine/backend.toml"
    _own(built, file, 'inlines = ["detokenizer", "tokenizer"]\n', "")
    built.serving["inline_detokenizer"] = True
    with pytest.raises(ConfigurationError, match="openvino_engine cannot do the work") as caught:
        _plan(built)
    assert caught.value.problem.startswith("models.speller.serving.inline_detokenizer: the backend")
    assert str(built.root / file) in caught.value.problem
    assert caught.value.remedy.startswith("remove `inline_detokenizer: true`, or serve it")


def test_task_without_a_detokenizer(built: Sandbox) -> None:
    """Nothing to fold: said, not ignored."""
    _own(built, "ensembles/text_generation.yaml", "backend: detokenizer", "backend: sheller")
    shutil.copytree(
        bundled.find("python_backends/detokenizer"), built.root / "python_backends" / "sheller"
    )
    built.serving["inline_detokenizer"] = True
    with pytest.raises(ConfigurationError, match="the task text_generation has no steps with"):
        _plan(built)


def test_output_that_a_step_reads(built: Sandbox) -> None:
    """Triton would fail requests for one output alone, so nothing is rendered."""
    outputs = "outputs:\n  - {name: text_output, "
    shown = "outputs:\n  - {name: _token_chunk, data_type: TYPE_INT32, dims: [-1]}"
    _own(
        built,
        "ensembles/text_generation.yaml",
        outputs,
        f"{shown}\n  - {{name: text_output, ",
    )
    with pytest.raises(ConfigurationError, match="a request for one output alone fails") as caught:
        _plan(built)
    assert "the output _token_chunk is also an input of step 3" in caught.value.problem


def test_name_collision(built: Sandbox) -> None:
    """`a` with step `engine` and a model called `a_engine` cannot share a repository."""
    built.data["models"]["speller_engine"] = built.model()
    with pytest.raises(ConfigurationError, match="have the name `speller_engine`"):
        _plan(built)


def test_parameter_that_nobody_gives(built: Sandbox) -> None:
    """A manifest without a value that the backend needs: exit code 6, key and builder named."""
    script = built.root / "builders" / "scripted" / "build.py"
    source = script.read_text(encoding="utf-8")
    script.write_text(source.replace('"block_size": 32', '"size": 32'), encoding="utf-8")
    with pytest.raises(RepositoryError, match="requests the parameter `block_size`") as caught:
        _plan(built)
    assert "builder scripted" in caught.value.problem
    assert caught.value.exit_code == 6


def test_model_without_an_engine(sandbox: Sandbox) -> None:
    """Planning builds nothing."""
    with pytest.raises(RepositoryError, match="has no engine"):
        plan_repository(sandbox.load())
    assert sandbox.run_count() == 0


def test_parameter_that_is_unknown(built: Sandbox) -> None:
    """Of a step of one's own: it belongs under [settings]."""
    source = bundled.find("python_backends/tokenizer")
    own = built.root / "python_backends" / "tokenizer"
    shutil.copytree(source, own)
    text = (own / "backend.toml").read_text(encoding="utf-8")
    wrong = text.replace("[parameters]", '[parameters]\nlanguage = "of the answer"', 1)
    (own / "backend.toml").write_text(wrong, encoding="utf-8")
    with pytest.raises(ConfigurationError, match="unknown parameter `language`") as caught:
        _plan(built)
    assert "`language = VALUE` under [settings]" in str(caught.value.remedy)
