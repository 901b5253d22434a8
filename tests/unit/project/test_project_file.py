# SPDX-License-Identifier: Apache-2.0
"""tritonctl.yaml: every mistake is told with file:line and the nearest right thing; precedence."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tritonctl.errors import ConfigurationError, TritonctlError, UsageError
from tritonctl.project.example import example_project
from tritonctl.project.file import deep_merge, find_project_file, load_project
from tritonctl.project.schema import SCHEMA, Project

VALID = """\
schema: tritonctl/v1
models:
  speller:
    checkpoint: weights
    engine:
      builder: openvino
      precision: int8
    serving:
      instance_group: [{kind: KIND_CPU, count: 1}]
server: {grpc_port: 9001}
profiles:
  gpu:
    server:
      grpc_port: 9101
    models: {speller: {engine: {precision: fp8}}}
"""

BASE = VALID.partition("profiles:")[0]


def _load(tmp_path: Path, text: str = VALID, **options: Any) -> Project:
    file = tmp_path / "tritonctl.yaml"
    file.write_text(text, encoding="utf-8")
    return load_project(file, **{"environment": {}, **options})


def _refused(
    tmp_path: Path, text: str, kind: type[TritonctlError] = ConfigurationError, **options: Any
) -> TritonctlError:
    with pytest.raises(kind) as caught:
        _load(tmp_path, text, **options)
    error = caught.value
    error.problem = error.problem.replace(f"{tmp_path}/", "")
    return error


def test_valid_file(tmp_path: Path) -> None:
    """Values of the file, defaults for the rest, paths from the file's folder."""
    project = _load(tmp_path)
    assert project.models["speller"].engine.precision == "int8"
    assert project.models["speller"].engine.max_batch_size == 32
    assert (project.server.grpc_port, project.server.http_port) == (9001, 8000)
    assert project.path(project.models["speller"].checkpoint) == tmp_path / "weights"
    assert project.repository == tmp_path / "model_repository"
    assert project.state == tmp_path / ".tritonctl"


def test_the_frontend_has_a_port_of_its_own(tmp_path: Path) -> None:
    """Of two that listen on one, the second would not start."""
    error = _refused(tmp_path, VALID + "frontend: {port: 9001}\n")
    assert "frontend.port 9001 equals server.grpc_port" in error.problem


UNKNOWN_KEYS = [
    ("server: {", "serve: {", 10, "serve", "the file", "server"),
    ("grpc_port: 9001", "grpc_prot: 9001", 10, "grpc_prot", "`server`", "grpc_port"),
    ("precision: int8", "precison: int8", 7, "precison", "`models.speller.engine`", "precision"),
    ("builder: openvino", "bilder: x", 6, "bilder", "`models.speller.engine`", "builder"),
    ("checkpoint:", "checkpiont:", 4, "checkpiont", "`models.speller`", "checkpoint"),
    ("serving:", "servng:", 8, "servng", "`models.speller`", "serving"),
    ("count: 1", "cont: 1", 9, "cont", "`models.speller.serving.instance_group.0`", "count"),
    ("schema:", "scheme:", 1, "scheme", "the file", "schema"),
    ("      grpc_port: 9101", "      grcp_port: 1", 14, "grcp_port", "`server`", "grpc_port"),
    ("{precision: fp8}", "{precison: a}", 15, "precison", "`models.speller.engine`", "precision"),
]


@pytest.mark.parametrize(("old", "new", "line", "key", "parent", "nearest"), UNKNOWN_KEYS)
def test_unknown_key(
    tmp_path: Path, old: str, new: str, line: int, key: str, parent: str, nearest: str
) -> None:
    """At any depth, in lists and in profiles too, also where the right key is required."""
    assert old in VALID
    error = _refused(tmp_path, VALID.replace(old, new))
    first = error.problem.splitlines()[0]
    assert first == f"tritonctl.yaml:{line}: unknown key `{key}` in {parent}"
    assert error.remedy.startswith(f"did you mean `{nearest}`? valid keys: ")


def test_unknown_key_like_nothing_lists_the_valid_ones(tmp_path: Path) -> None:
    """No guess is better than a wild one."""
    error = _refused(tmp_path, VALID + "zzz: 1\n")
    assert error.problem == "tritonctl.yaml:16: unknown key `zzz` in the file"
    assert error.remedy == (
        "valid keys: docker, engines, ensembles, frontend, gateway, loadtests, model_repository, "
        "models, profiles, rollout, schema, server"
    )


QUEUE = "models.speller.serving.queue"
OTHER_MISTAKES = [
    (
        "grpc_port: 9001",
        "grpc_port: '9001'",
        10,
        "`server.grpc_port`: expected a whole number, got `",
    ),
    ("grpc_port: 9001", "grpc_port: 65536", 10, "`server.grpc_port`: expected at most"),
    (
        "grpc_port: 9101",
        "grpc_port: many",
        14,
        "`server.grpc_port`: expected a whole number, got `",
    ),
    (
        "precision: int8",
        "precision: 8",
        7,
        "`models.speller.engine.precision`: expected text, got `8`",
    ),
    ("      precision: int8\n", "", 5, "`models.speller.engine.precision` is missing"),
    ("    checkpoint: weights\n", "", 3, "`models.speller.checkpoint` is missing"),
    ("schema: tritonctl/v1\n", "x: &x 1\n", 1, "unknown key `x` in the file"),
    ("tritonctl/v1", "tritonctl/v2", 1, "this tritonctl reads schema tritonctl/v1"),
    ("KIND_CPU", "KIND_CUP", 9, "`models.speller.serving.instance_group.0.kind`: expected "),
    (
        "[{kind: KIND_CPU, count: 1}]",
        "[]",
        9,
        "`models.speller.serving.instance_group`: expected at least 1 in the list",
    ),
    ("  speller:\n", "  my speller:\n", 3, "`models.my speller`: expected text that matches"),
    ("server: {grpc_port: 9001}", "server:", 10, "`server`: expected a section of keys"),
    *(
        ("instance_group: [{kind: KIND_CPU, count: 1}]", f"queue: {{{entry}}}", 9, problem)
        for entry, problem in (
            ("max_queue_size: -1", f"`{QUEUE}.max_queue_size`: expected at least 0, got `-1`"),
            ("max_queue_size: 4294967296", f"`{QUEUE}.max_queue_size`: expected less than"),
            ("priority_levels: 257", f"`{QUEUE}.priority_levels`: expected at most"),
            ("priority_levels: two", f"`{QUEUE}.priority_levels`: expected a whole number, got `"),
            ("default_priority_level: 0", f"`{QUEUE}.default_priority_level`: expected at least 1"),
            ("default_priority_level: 1", f"`{QUEUE}`: default_priority_level is 1, "),
            ("default_timeout_microseconds: 86400000001", f"`{QUEUE}.default_timeout_microseco"),
            (
                "allow_timeout_override: 1",
                f"`{QUEUE}.allow_timeout_override`: expected true or false, got `1`",
            ),
            ("max_queue_sise: 1", "unknown key `max_queue_sise` in `models.speller.serving.queue`"),
        )
    ),
]


@pytest.mark.parametrize(("old", "new", "line", "problem"), OTHER_MISTAKES)
def test_wrong_value(tmp_path: Path, old: str, new: str, line: int, problem: str) -> None:
    """Wrong types, values out of range, missing keys, another schema: each on its own line."""
    assert old in VALID
    error = _refused(tmp_path, VALID.replace(old, new))
    assert error.exit_code == 3
    assert error.problem.splitlines()[0].startswith(f"tritonctl.yaml:{line}: {problem}")


def test_missing_schema_says_so(tmp_path: Path) -> None:
    """A required key that is nowhere is told with the file's first line."""
    error = _refused(tmp_path, VALID.replace("schema: tritonctl/v1\n", ""))
    assert error.problem == "tritonctl.yaml:1: `schema` is missing"


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    """Three mistakes, three lines: nobody wants to learn of them one by one."""
    text = VALID.replace("int8", "8").replace("count: 1", "count: 0").replace("9001", "-1")
    lines = _refused(tmp_path, text.partition("profiles:")[0]).problem.splitlines()
    assert [line.split(": ")[0] for line in lines] == [
        "tritonctl.yaml:7",
        "tritonctl.yaml:9",
        "tritonctl.yaml:10",
    ]


def test_a_profile_nobody_chose_is_checked_too(tmp_path: Path) -> None:
    """A mistake in a profile shows before the day it is needed, with the profile's line."""
    error = _refused(tmp_path, VALID.replace("precision: fp8", "precision: 8"))
    assert error.problem.startswith("tritonctl.yaml:15: `models.speller.engine.precision`: ")


def test_profile_that_adds_an_incomplete_model(tmp_path: Path) -> None:
    """What is missing in a profile's addition is told with the profile's line."""
    text = VALID.replace("{speller: {engine: {precision: fp8}}}", "{other: {checkpoint: x}}")
    error = _refused(tmp_path, text)
    assert error.problem == "tritonctl.yaml:15: `models.other.engine` is missing"


def test_unknown_profile_names_the_nearest(tmp_path: Path) -> None:
    """`--env gup` is answered with `gpu`."""
    error = _refused(tmp_path, VALID, UsageError, profile="gup")
    assert error.problem == "tritonctl.yaml:11: unknown profile `gup`"
    assert error.remedy == "did you mean `gpu`? profiles: gpu"


def test_profile_of_a_file_without_profiles(tmp_path: Path) -> None:
    """The list of profiles is then empty."""
    error = _refused(tmp_path, BASE, UsageError, profile="gpu")
    assert error.problem == "tritonctl.yaml:1: unknown profile `gpu`"
    assert error.remedy == "profiles: none"


@pytest.mark.parametrize(
    ("profiles", "line", "problem"),
    [
        ("profiles: 3\n", 11, "`profiles` is not a mapping of names to settings"),
        ("profiles: [gpu]\n", 11, "`profiles` is not a mapping of names to settings"),
        ("profiles:\n  gpu:\n", 12, "profile `gpu` is not a mapping"),
        ("profiles:\n  gpu: fast\n", 12, "profile `gpu` is not a mapping"),
    ],
)
def test_malformed_profiles(tmp_path: Path, profiles: str, line: int, problem: str) -> None:
    """Profiles of the wrong shape are a configuration error, never a crash."""
    error = _refused(tmp_path, BASE + profiles)
    assert error.problem == f"tritonctl.yaml:{line}: {problem}"


def test_precedence_flag_environment_profile_file_default(tmp_path: Path) -> None:
    """Each layer wins over those below it and leaves the others' fields alone."""
    environment = {"TRITONCTL_SERVER__GRPC_PORT": "9201"}
    flags = ["server.grpc_port=9301"]

    def port(text: str = VALID, **options: Any) -> int:
        project = _load(tmp_path, text, **options)
        assert project.server.http_port == 8000
        return project.server.grpc_port

    assert port(VALID.replace("server: {grpc_port: 9001}\n", "")) == 8001
    assert port() == 9001
    assert port(profile="gpu") == 9101
    assert port(profile="gpu", environment=environment) == 9201
    assert port(profile="gpu", environment=environment, overrides=flags) == 9301
    assert port(overrides=[*flags, "server.grpc_port=9302"]) == 9302


def test_profile_merges_deeply(tmp_path: Path) -> None:
    """A profile changes what it names and keeps its neighbours."""
    engine = _load(tmp_path, profile="gpu").models["speller"].engine
    assert (engine.builder, engine.precision) == ("openvino", "fp8")


def test_environment_variables(tmp_path: Path) -> None:
    """Sections by double underscores; other variables of that prefix mean other things."""
    environment = {
        "TRITONCTL_PROFILE": "gpu",
        "TRITONCTL_MODELS__SPELLER__ENGINE__MAX_BATCH_SIZE": "7",
        "TRITONCTL_MODEL_REPOSITORY": "elsewhere",
        "TRITONCTL_CACHE_DIR": "/nowhere",
        "SERVER__GRPC_PORT": "1",
    }
    project = _load(tmp_path, environment=environment)
    assert project.models["speller"].engine.max_batch_size == 7
    assert project.models["speller"].engine.precision == "fp8"
    assert project.repository == tmp_path / "elsewhere"
    assert project.server.grpc_port == 9101


def test_flag_profile_beats_the_environment_s(tmp_path: Path) -> None:
    """--env over TRITONCTL_PROFILE."""
    text = VALID + "  other: {server: {grpc_port: 9401}}\n"
    environment = {"TRITONCTL_PROFILE": "gpu"}
    assert _load(tmp_path, text, profile="other", environment=environment).server.grpc_port == 9401


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"overrides": ["server.grpc_port"]}, "--set server.grpc_port: `server.grpc_port` is not"),
        ({"overrides": ["=3"]}, "--set =3: `=3` is not KEY=VALUE"),
        ({"overrides": ["server.grpc_port=x"]}, "--set server.grpc_port=x: `server.grpc_port`: "),
        ({"overrides": ["server={grpc_port: x}"]}, "--set server={grpc_port: x}: `server.grpc_po"),
        ({"overrides": ["server.grpc_port=[1"]}, "--set server.grpc_port=[1: the value is not"),
        ({"overrides": ["server.grpc_port=2026-99-99"]}, "--set server.grpc_port=2026-99-99: the"),
        ({"overrides": ["server.grcp_port=1"]}, "--set server.grcp_port=1: unknown key `grcp_po"),
        ({"overrides": ["server=3"]}, "--set server=3: `server`: "),
        (
            {"environment": {"TRITONCTL_SERVER__GRPC_PORT": "x"}},
            "environment variable TRITONCTL_SERVER__GRPC_PORT: `server.grpc_port`: ",
        ),
        (
            {"overrides": ["models.speller.serving.instance_group=[{kind: X}]"]},
            "--set models.speller.serving.instance_group=[{kind: X}]: `models.speller.serving.",
        ),
    ],
)
def test_wrong_override_is_told_by_its_origin(
    tmp_path: Path, options: dict[str, Any], problem: str
) -> None:
    """The flag or the variable is named, not the line of the file that it replaced."""
    assert _refused(tmp_path, VALID, UsageError, **options).problem.startswith(problem)


def test_override_keeps_the_file_s_blame(tmp_path: Path) -> None:
    """A mistake of the file beside an overridden field is still the file's."""
    text = VALID.replace("{grpc_port: 9001}", "{grpc_port: 9001, http_port: x}")
    error = _refused(tmp_path, text.partition("profiles:")[0], overrides=["server={grpc_port: 1}"])
    assert error.problem.startswith("tritonctl.yaml:10: `server.http_port`: ")


def test_project_is_found_upwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a sub-folder, through TRITONCTL_PROJECT, by folder and by file."""
    _load(tmp_path)
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    assert load_project(environment={}).root == tmp_path
    assert find_project_file(deep) == tmp_path / "tritonctl.yaml"
    assert load_project(tmp_path, environment={}).root == tmp_path
    monkeypatch.chdir("/")
    assert load_project(environment={"TRITONCTL_PROJECT": str(tmp_path)}).root == tmp_path


def test_nearest_project_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project inside another one is its own."""
    inner = tmp_path / "inner"
    inner.mkdir()
    _load(tmp_path)
    _load(inner)
    monkeypatch.chdir(inner)
    assert load_project(environment={}).root == inner


def test_no_project_anywhere(tmp_path: Path) -> None:
    """The folder that was searched from is named, and `init` offered."""
    with pytest.raises(ConfigurationError, match=r"no tritonctl\.yaml in .* or any folder above"):
        find_project_file(tmp_path)


def test_init_example_is_valid(tmp_path: Path) -> None:
    """The commented example loads as it is, with both its profiles."""
    project = _load(tmp_path, example_project("my-model", "some/checkpoint"))
    assert list(project.models) == ["my-model"]
    assert project.models["my-model"].checkpoint == Path("some/checkpoint")
    exact = _load(tmp_path, example_project("my-model", "c"), profile="exact")
    assert exact.models["my-model"].engine.precision == "fp32"


@pytest.mark.parametrize("checkpoint", ['a "b" c', "C: #x", "ünï/字", "{{ name }}", "a'b", "- x"])
def test_init_example_quotes_what_yaml_would_misread(tmp_path: Path, checkpoint: str) -> None:
    """Whatever a folder is called, the file means that folder."""
    project = _load(tmp_path, example_project("m", checkpoint))
    assert project.models["m"].checkpoint == Path(checkpoint)


def test_init_example_s_comments_are_right(tmp_path: Path) -> None:
    """What the example shows commented out is valid once the comment sign goes."""
    text = example_project("m", "c")
    for commented in ("max_seq_len: 2048", "config: {engine", "evaluation: {", "slo: {"):
        assert f"# {commented}" in text
        text = text.replace(f"# {commented}", commented)
    start = text.index("# loadtests:")
    section = text[start:].partition("\n\n")[0]
    text = text.replace(section, re.sub("^# ", "", section, flags=re.MULTILINE))
    project = _load(tmp_path, text)
    assert project.loadtests["chat"].requests[0].name == "short"
    model = project.models["m"]
    assert model.engine.max_seq_len == 2048
    assert model.evaluation is not None
    assert model.serving.config["engine"]["version_policy"] == {"latest": {"num_versions": 2}}


def test_the_repository_s_own_project_is_valid() -> None:
    """tritonctl.yaml of this checkout and all its profiles."""
    root = Path(__file__).parents[3]
    project = load_project(root, environment={})
    assert set(project.profiles) >= {"exact"}
    for profile in project.profiles:
        load_project(root, profile=profile, environment={})


def test_json_schema_knows_every_key() -> None:
    """Editors complete what the reader accepts: same keys, nothing else allowed."""
    schema = Project.model_json_schema(by_alias=True)
    assert set(schema["properties"]) == {
        "schema",
        "engines",
        "model_repository",
        "models",
        "ensembles",
        "server",
        "docker",
        "gateway",
        "frontend",
        "rollout",
        "loadtests",
        "profiles",
    }
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["schema"], "models may all be handwritten"
    definitions = schema["$defs"]
    assert {"Model", "Engine", "Serving", "Server", "Slo", "Evaluation"} <= set(definitions)
    assert all(d["additionalProperties"] is False for d in definitions.values())
    assert {"builder", "precision", "max_seq_len"} <= set(definitions["Engine"]["properties"])
    assert schema["properties"]["schema"]["const"] == "tritonctl/v1"


def test_json_schema_describes_the_shipped_project() -> None:
    """Each key that the repository's own tritonctl.yaml uses is in the schema."""
    schema = Project.model_json_schema(by_alias=True)
    data = load_project(Path(__file__).parents[3], environment={}).model_dump(
        by_alias=True, exclude_unset=True, exclude={"profiles"}
    )
    definitions = schema["$defs"]
    assert set(data) <= set(schema["properties"])
    assert set(data["server"]) <= set(definitions["Server"]["properties"])
    for model in data["models"].values():
        assert set(model) <= set(definitions["Model"]["properties"])
        assert set(model["engine"]) <= set(definitions["Engine"]["properties"])


KEYS: list[tuple[str, ...]] = [
    ("server",),
    ("models",),
    ("model_repository",),
    ("server", "grpc_port"),
    ("server", "ready_timeout_seconds"),
    ("models", "speller", "checkpoint"),
    ("models", "speller", "engine"),
    ("models", "speller", "serving"),
    ("models", "speller", "engine", "builder"),
    ("models", "speller", "engine", "max_batch_size"),
    ("models", "speller", "engine", "kv_cache_dtype"),
    ("models", "speller", "serving", "dynamic_batching", "max_queue_delay_microseconds"),
]


@st.composite
def _typos(draw: st.DrawFn) -> tuple[tuple[str, ...], str]:
    """A key of the project file and the same key with one slip of the finger."""
    location = draw(st.sampled_from(KEYS))
    key = location[-1]
    place = draw(st.integers(0, len(key) - 2))
    letter = draw(st.sampled_from("abcdefghijklmnopqrstuvwxyz_"))
    slips = [
        key[:place] + key[place + 1 :],
        key[:place] + letter + key[place:],
        key[:place] + key[place + 1] + key[place] + key[place + 2 :],
    ]
    return location, draw(st.sampled_from([s for s in slips if s != key] or [f"{key}x"]))


@settings(max_examples=60, deadline=None)
@given(_typos())
def test_any_slip_of_the_finger_is_answered_with_the_key(
    tmp_path_factory: pytest.TempPathFactory, typo: tuple[tuple[str, ...], str]
) -> None:
    """One letter lost, added or swapped: the right key is named as the nearest."""
    location, slip = typo
    override = f"{'.'.join((*location[:-1], slip))}=1"
    error = _refused(tmp_path_factory.mktemp("typo"), VALID, UsageError, overrides=[override])
    assert f"--set {override}: unknown key `{slip}`" in error.problem
    assert error.remedy.startswith(f"did you mean `{location[-1]}`?")


_trees = st.recursive(
    st.integers() | st.lists(st.integers(), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
_mappings = st.dictionaries(st.sampled_from("abc"), _trees, max_size=3)


@given(_mappings, _mappings, _mappings)
def test_deep_merge_properties(a: dict[str, Any], b: dict[str, Any], c: dict[str, Any]) -> None:
    """Neutral element, idempotence, nothing mutated; what is over, is in the result."""
    before = repr((a, b))
    merged = deep_merge(a, b)
    assert repr((a, b)) == before
    assert deep_merge(a, {}) == a == deep_merge({}, a) == deep_merge(a, a)
    assert deep_merge(merged, b) == merged
    assert set(merged) == set(a) | set(b)
    for key, value in b.items():
        assert isinstance(value, dict) or merged[key] == value
    if all(not isinstance(value, dict) for tree in (a, b, c) for value in tree.values()):
        assert deep_merge(deep_merge(a, b), c) == deep_merge(a, deep_merge(b, c))


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("~nobody-of-that-name/x", "home directory"),
        ("loop", "loop"),
        ("a\0b", "null"),
        ("x" * 5000, "File name too long"),
    ],
)
def test_a_path_that_can_be_none(tmp_path: Path, path: str, problem: str) -> None:
    """It is a mistake in the project file, not a bug."""
    (tmp_path / "loop").symlink_to("loop")
    project = _load(tmp_path)
    with pytest.raises(ConfigurationError) as caught:
        project.path(Path(path))
    assert problem in caught.value.problem
    assert str(tmp_path) in caught.value.remedy


def test_a_missing_schema_is_told_what_to_write(tmp_path: Path) -> None:
    """The line itself: nobody knows the version by heart."""
    file = tmp_path / "tritonctl.yaml"
    file.write_text("models: {}\n", encoding="utf-8")
    with pytest.raises(ConfigurationError) as raised:
        load_project(file)
    assert raised.value.remedy == "write `schema: tritonctl/v1` in its first line"


@pytest.mark.parametrize(
    ("tenants", "serving", "expected"),
    [
        (0, {}, True),
        (1, {}, True),
        (2, {}, False),
        (2, {"unary": True}, False),
        (2, {"enable_prefix_caching": True}, True),
        (0, {"enable_prefix_caching": False}, False),
    ],
)
def test_several_tenants_share_no_prefix_cache(
    tmp_path: Path, tenants: int, serving: dict[str, bool], expected: bool
) -> None:
    """Unless the model's section says so."""
    keys = {f"tenant-{number}": {"api_key_file": "key"} for number in range(tenants)}
    engine = {"builder": "openvino", "precision": "int8"}
    model = {"checkpoint": "x", "engine": engine, "serving": serving}
    data = {"schema": SCHEMA, "models": {"a": model, "b": model}, "gateway": {"tenants": keys}}
    project = Project.at(tmp_path, data)
    caching = {each.serving.enable_prefix_caching for each in project.models.values()}
    assert caching == {expected}


@pytest.mark.parametrize("field", ["gateway", "models"])
@pytest.mark.parametrize("value", [None, 7, [], {"tenants": 3}, {"tenants": {"a": 1, "b": 2}}])
def test_sections_of_other_types_are_mistakes(tmp_path: Path, field: str, value: object) -> None:
    """As before the tenants are counted."""
    data = {"schema": SCHEMA, "models": {"a": 3}, "gateway": {"tenants": {"a": {}, "b": {}}}}
    with pytest.raises(ValidationError):
        Project.at(tmp_path, data | {field: value})
