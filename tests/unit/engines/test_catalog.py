# SPDX-License-Identifier: Apache-2.0
"""Builders and backends as data: what exists, what is refused before anything runs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tritonctl.engines.builds.catalog import builder_named
from tritonctl.engines.builds.engine import build_engine
from tritonctl.engines.builds.runners import builder_recipe
from tritonctl.engines.estimates.table import estimate_table
from tritonctl.engines.proposals.precisions import DECODER_PRECISIONS
from tritonctl.errors import ConfigurationError, UsageError
from tritonctl.host import bundled
from tritonctl.host.progress import Silent
from tritonctl.project.engine import Engine
from tritonctl.protocol.sampling_table import SAMPLING_FILE
from tritonctl.repository.backends import backend_named
from tritonctl.repository.native import NATIVE

if TYPE_CHECKING:
    from tests.unit.conftest import Sandbox


def test_shipped_builders_and_backends_are_well_formed() -> None:
    """Every builder.toml and backend.toml of this checkout reads, and each lies by its name."""
    builders = bundled.names("builders", "/builder.toml")
    assert "openvino" in builders
    for name in builders:
        builder = builder_named(name)
        assert builder.name == name
        for stage in builder.stages or builder.stages_for(None):
            assert builder.program(stage).is_file()
        for served_by in {builder.backend_for(None), builder.backend_for("embedding")}:
            assert served_by in NATIVE or "engine" in backend_named(served_by).files
    backends = bundled.names("python_backends", "/backend.toml")
    assert {"tokenizer", "detokenizer", "openvino_engine"} <= set(backends)
    for name in backends:
        backend = backend_named(name)
        assert backend.name == name
        assert backend.requirements == (backend.folder / "requirements.txt",)
        assert all(source.is_file() for source, _ in backend.version_files())


def test_lists_of_precisions_name_those_of_the_builders() -> None:
    """What is calibrated, proposed and estimated is a precision that builder.toml lists."""
    figures = estimate_table().builders
    for name in bundled.names("builders", "/builder.toml"):
        builder = builder_named(name)
        precisions = set(builder.precisions)
        assert {*builder.calibrated, *DECODER_PRECISIONS.get(name, ())} <= precisions, name
        assert precisions <= figures[name].precisions.keys(), name
        tasks = figures[name].tasks or figures[name]
        assert set(builder.precisions_for("embedding")) <= tasks.precisions.keys(), name


def test_a_stage_that_is_another_builder_s_program(sandbox: Sandbox) -> None:
    """Of a task alone; its script, sources and environment are the other's."""
    tensorrt, onnxruntime = builder_named("tensorrt"), builder_named("onnxruntime")
    export, compiled = tensorrt.stages_for(None, "embedding")
    assert tensorrt.stages_for(None) == [compiled]
    assert tensorrt.program(export) == onnxruntime.folder / "build.py"
    assert tensorrt.owner(export).folders == onnxruntime.folders
    assert builder_recipe(tensorrt, export) == builder_recipe(onnxruntime)
    assert tensorrt.owner(compiled) is tensorrt
    assert tensorrt.exportable_architectures("rerank") == onnxruntime.architectures
    assert tensorrt.exportable_architectures("tensors") == []
    own = sandbox.root / "builders" / "tensorrt"
    shutil.copytree(tensorrt.folder, own)
    with pytest.raises(ConfigurationError, match=r"onnxruntime/builder\.toml does not exist"):
        builder_named("tensorrt", sandbox.root).owner(export)


def test_a_builder_whose_tasks_have_stages_of_their_own() -> None:
    """Text generation stays one build; tasks have other precisions and another backend."""
    openvino, onnxruntime = builder_named("openvino"), builder_named("onnxruntime")
    [whole] = openvino.stages_for(None)
    assert (whole.name, whole in openvino.stages) == ("build", False)
    export, compiled = openvino.stages_for(None, "embedding")
    assert openvino.program(export) == onnxruntime.folder / "build.py"
    assert openvino.program(compiled) == openvino.folder / "build_task.py"
    assert export.precision == "fp32"
    assert openvino.exportable_architectures("rerank") == onnxruntime.architectures
    assert "LlamaForCausalLM" in openvino.exportable_architectures("text_generation")
    assert (openvino.backend_for(None), openvino.backend_for("embedding")) == (
        "openvino_engine",
        "openvino_graph_engine",
    )
    accept = Engine(builder="openvino", precision="bf16", max_batch_size=1)
    openvino.check_engine(accept, "embedding")
    with pytest.raises(ConfigurationError, match="no precision `bf16`"):
        openvino.check_engine(accept, "text_generation")


def test_a_project_s_own_backend_uses_the_shipped_library(sandbox: Sandbox) -> None:
    """Its folder needs no copy of textlib; one that it has wins."""
    own = sandbox.root / "python_backends" / "openvino_engine"
    shutil.copytree(bundled.find("python_backends/openvino_engine"), own)
    code = {
        target: source for source, target in backend_named(own.name, sandbox.root).version_files()
    }
    assert code["model.py"] == own / "model.py"
    assert code["textlib/tokens/detokenize.py"] == bundled.find(
        "python_backends/textlib/tokens/detokenize.py"
    )
    assert code["textlib/triton/sampling.json"] == bundled.find(SAMPLING_FILE)
    for library in ("openvinolib", "textlib"):
        (own.parent / library).mkdir()
    assert list(backend_named(own.name, sandbox.root).version_files()) == [
        (own / "model.py", "model.py")
    ]


def test_a_project_s_own_builder_is_found_first(sandbox: Sandbox) -> None:
    """A folder of the project shadows a shipped one of the same name."""
    own = sandbox.root / "builders" / "openvino"
    shutil.copytree(sandbox.root / "builders" / "scripted", own)
    assert builder_named("openvino", sandbox.root).folder == own
    assert builder_named("openvino").folder != own
    assert "scripted" not in bundled.names("builders", "/builder.toml")


REFUSALS: list[tuple[dict[str, Any], str, str]] = [
    (
        {"builder": "scriptd"},
        "unknown builder `scriptd`",
        "did you mean `scripted`? expected one of",
    ),
    ({"builder": "../x"}, "unknown builder `../x`", "expected one of "),
    (
        {"precision": "int9"},
        "builder scripted has no precision `int9`",
        "did you mean `int8`? expected one of fp32, int8",
    ),
    ({"precision": "int8_sq"}, "builder scripted has no precision `int8_sq`", "expected one of"),
    (
        {"kv_cache_dtype": "fp8"},
        "builder scripted has no kv_cache_dtype `fp8`",
        "expected one of int8",
    ),
    (
        {"runner": "venv"},
        "builder scripted has no runner `venv`",
        "expected one of current, container",
    ),
]


@pytest.mark.parametrize(("change", "problem", "remedy"), REFUSALS)
def test_refusals_name_the_nearest(
    sandbox: Sandbox, change: dict[str, Any], problem: str, remedy: str
) -> None:
    """Before anything runs: exit code 3, the field, what would do; nothing is left on disk."""
    sandbox.engine.update(change)
    with pytest.raises(ConfigurationError) as caught:
        build_engine(sandbox.load(), "speller", Silent())
    assert caught.value.problem == f"models.speller: {problem}"
    assert caught.value.remedy.startswith(remedy)
    assert sandbox.run_count() == 0
    assert not (sandbox.root / ".tritonctl").exists()


def test_unknown_task_of_a_builder(sandbox: Sandbox) -> None:
    """A task that the builder does not build."""
    sandbox.data["models"]["speller"]["task"] = "text_generatio"
    with pytest.raises(ConfigurationError, match="has no task `text_generatio`") as caught:
        build_engine(sandbox.load(), "speller", Silent())
    assert caught.value.remedy.startswith("did you mean `text_generation`?")


def test_a_container_needs_an_image(sandbox: Sandbox) -> None:
    """Nothing to run in: exit code 3, before any container engine is asked."""
    sandbox.engine["runner"] = "container"
    with pytest.raises(ConfigurationError, match="the runner `container` needs an image") as caught:
        build_engine(sandbox.load(), "speller", Silent())
    assert "engine.target.image" in caught.value.remedy


def test_missing_checkpoint(sandbox: Sandbox) -> None:
    """A hub's name is no folder: told how to fetch it."""
    sandbox.data["models"]["speller"]["checkpoint"] = "org/name"
    with pytest.raises(ConfigurationError, match=r"checkpoint org/name is not a folder") as e:
        build_engine(sandbox.load(), "speller", Silent())
    assert "`tritonctl fetch`" in e.value.remedy


def test_missing_prompts(sandbox: Sandbox) -> None:
    """An evaluation without its prompts is refused before the build."""
    sandbox.data["models"]["speller"]["evaluation"] = {"prompts": "none.jsonl"}
    with pytest.raises(ConfigurationError, match=r"prompts file .*none\.jsonl does not exist"):
        build_engine(sandbox.load(), "speller", Silent())


def test_unknown_model(sandbox: Sandbox) -> None:
    """The project's models are listed."""
    with pytest.raises(UsageError, match="the project has no model `spell`") as caught:
        build_engine(sandbox.load(), "spell", Silent())
    assert caught.value.remedy == "did you mean `speller`? its models: speller"


@pytest.mark.parametrize(
    "text",
    [
        "schema = ",
        'schema = "tritonctl.builder/2"\n',
        'schema = "tritonctl.builder/1"\nname = "scripted"\n',
    ],
)
def test_malformed_builder_toml(sandbox: Sandbox, text: str) -> None:
    """The file is named, exit code 3."""
    file = sandbox.root / "builders" / "scripted" / "builder.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"scripted/builder\.toml is malformed: "):
        builder_named("scripted", sandbox.root)


def test_builder_toml_that_is_not_utf8(sandbox: Sandbox) -> None:
    """An encoding mistake is a mistake of the file, not a bug of ours."""
    file = sandbox.root / "builders" / "scripted" / "builder.toml"
    file.write_bytes(b'name = "\xff"\n')
    with pytest.raises(ConfigurationError, match="is malformed"):
        builder_named("scripted", sandbox.root)


def test_malformed_backend_toml(sandbox: Sandbox) -> None:
    """A misspelt field of a backend is named with its file."""
    shipped = bundled.find("python_backends/tokenizer/backend.toml")
    own = sandbox.root / "python_backends" / "tokenizer" / "backend.toml"
    own.parent.mkdir(parents=True)
    text = shipped.read_text(encoding="utf-8").replace("max_batch_size", "max_batch_siz")
    own.write_text(text, encoding="utf-8")
    with pytest.raises(
        ConfigurationError, match=r"(?s)backend\.toml is malformed: .*max_batch_siz\b"
    ):
        backend_named("tokenizer", sandbox.root)


def test_sampling_parameters_of_a_backend(sandbox: Sandbox) -> None:
    """Each supported one is an input, with its note; an unknown one is named with the table's."""
    [top_k] = [t for t in backend_named("trtllm_engine").inputs if t.name == "runtime_top_k"]
    assert (top_k.data_type, top_k.optional) == ("TYPE_INT32", True)
    assert top_k.doc.endswith("; 0 or more; engines: at most 1024")
    own = sandbox.root / "python_backends" / "openvino_engine"
    shutil.copytree(bundled.find("python_backends/openvino_engine"), own)
    file = own / "backend.toml"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace('  "top_k",\n', ""), encoding="utf-8")
    names = {tensor.name for tensor in backend_named(own.name, sandbox.root).inputs}
    assert "runtime_top_p" in names
    assert "runtime_top_k" not in names
    file.write_text(text.replace('"top_k"', '"top_q"'), encoding="utf-8")
    with pytest.raises(ConfigurationError, match="names top_q, expected names from temperature, "):
        backend_named(own.name, sandbox.root)


def test_content_that_is_nowhere() -> None:
    """Neither in a project nor shipped."""
    with pytest.raises(ConfigurationError, match=r"ensembles/none\.yaml exists neither"):
        bundled.find("ensembles/none.yaml", Path("/"))
