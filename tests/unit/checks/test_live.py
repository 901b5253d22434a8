# SPDX-License-Identifier: Apache-2.0
"""What a server may say, against what files say: no server needed to compare the two."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import pytest
from google.protobuf import text_format
from typer.testing import CliRunner

from tests.check_models.models import CONFIG, MODEL, python_model
from tests.unit.checks.repositories import put
from tritonctl.checks.config.message import read
from tritonctl.checks.config.schema import model_config_schema
from tritonctl.checks.config.textproto import parse
from tritonctl.checks.findings import CheckFinding, CheckReport
from tritonctl.checks.live.drift import ConfigDifference, differences
from tritonctl.checks.live.rules import LIVE_RULES
from tritonctl.checks.live.server import check_server, server_version
from tritonctl.checks.report.formats import FORMATS, explain_rule
from tritonctl.checks.rules import RULES
from tritonctl.cli import application
from tritonctl.errors import UsageError
from tritonctl.protocol.inspection import is_reachable_remotely
from tritonctl.protocol.server_description import (
    IndexEntry,
    ServedModel,
    ServerDescription,
    TensorMetadata,
)

NOT_LOADED = "m is not loaded: no client requested it, or its config.pbtxt could not be read"
URL = "127.0.0.1:8001"
TENSORS = (TensorMetadata("INPUT", "FP32", (-1, 4)), TensorMetadata("OUTPUT", "FP32", (-1, 4)))


def served(config: str = CONFIG, versions: tuple[str, ...] = ("1",)) -> ServedModel:
    message = text_format.Parse(config, model_config_schema().ModelConfig())
    return ServedModel("m", versions, TENSORS[:1], TENSORS[1:], message.SerializeToString())


def inspection(
    model: ServedModel | None,
    *entries: IndexEntry,
    version: str = "2.73.0",
    protocols: frozenset[str] = frozenset(),
    beyond: bool = False,
    tls: bool = False,
    index: bool = True,
    unserved: str = "",
) -> ServerDescription:
    models = {model.name: model} if model else {}
    told = entries or tuple(
        IndexEntry("m", v, "READY", "") for v in (model.versions if model else ())
    )
    return ServerDescription(
        URL,
        tls,
        version,
        told if index else None,
        models,
        {"m": unserved} if unserved else {},
        protocols,
        beyond,
    )


def compared(folder: Path, seen: ServerDescription) -> list[CheckFinding]:
    return list(check_server([folder], seen).findings)


def only(folder: Path, seen: ServerDescription) -> CheckFinding:
    [finding] = compared(folder, seen)
    return finding


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One model `m` of the Python backend."""
    return put(tmp_path / "models", python_model())


@pytest.mark.parametrize("name", LIVE_RULES)
def test_words(name: str) -> None:
    """Ids of their own, texts that can stand in a sentence, a page of their own."""
    rule = LIVE_RULES[name]
    assert re.fullmatch(r"TCS\d\d", rule.id)
    assert rule.id == name
    assert name not in RULES
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", rule.name)
    assert rule.summary[0].islower()
    assert not rule.summary.endswith(".")
    assert rule.reason.endswith(".")
    assert rule.summary in explain_rule(rule)


def test_a_server_that_does_what_the_repository_says(repository: Path) -> None:
    """Nothing to tell."""
    assert compared(repository, inspection(served())) == []


@pytest.mark.parametrize(
    ("entries", "rule", "told"),
    [
        ((IndexEntry("other", "1", "LOADING", ""),), "TCS01", "the server does not know m"),
        ((IndexEntry("m", "", "", ""),), "TCS03", NOT_LOADED),
        ((IndexEntry("m", "1", "UNAVAILABLE", "unloaded"),), "TCS03", "m was unloaded"),
        (
            (IndexEntry("m", "1", "UNAVAILABLE", "no file"),),
            "TCS02",
            "m version 1 is UNAVAILABLE: no file",
        ),
        ((IndexEntry("m", "1", "LOADING", ""),), "TCS02", "m version 1 is LOADING"),
    ],
)
def test_states(repository: Path, entries: tuple[IndexEntry], rule: str, told: str) -> None:
    """As the index tells them; the model's folder is the place."""
    finding = only(repository, inspection(None, *entries))
    assert (finding.rule, finding.message) == (rule, told)
    assert finding.path == str(repository / "m")


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        ("Request for unknown model: 'm' is not found", "TCS01"),
        ("Request for unknown model: 'm' has no available versions", "TCS02"),
    ],
)
def test_states_without_the_index(repository: Path, words: str, rule: str) -> None:
    """Where it takes a token: what clients are told."""
    assert only(repository, inspection(None, index=False, unserved=words)).rule == rule
    assert compared(repository, inspection(served(), index=False)) == []


@pytest.mark.parametrize(
    ("policy", "wanted"),
    [
        ("", "3"),
        ("version_policy { latest { num_versions: 2 } }\n", "23"),
        ("version_policy { all { } }\n", "123"),
        ("version_policy { specific { versions: [ 1, 3, 7 ] } }\n", "13"),
    ],
)
def test_versions(policy: str, wanted: str, tmp_path: Path) -> None:
    """Those that the policy chooses of the existing folders."""
    config = CONFIG + policy
    put(tmp_path, python_model(config, **{"2__model.py": MODEL, "3__model.py": MODEL}))
    whole = config if policy else CONFIG + "version_policy { latest { num_versions: 1 } }\n"
    assert compared(tmp_path, inspection(served(whole, tuple(wanted)))) == []
    lacking = compared(tmp_path, inspection(served(whole, ("9",))))
    assert [f.message for f in lacking if f.rule == "TCS04"] == [
        f"version {version} is not served; the server has 9" for version in wanted
    ]


def test_a_version_that_was_removed(tmp_path: Path) -> None:
    """Still served: told once; the one that the policy leaves out points at the policy."""
    put(tmp_path, python_model(CONFIG + "version_policy { all { } }\n"))
    whole = CONFIG + "version_policy { all { } }\n"
    finding = only(tmp_path, inspection(served(whole, ("1", "2"))))
    assert (finding.rule, finding.severity) == ("TCS05", "warning")
    assert finding.message == "version 2 is served, and the repository no longer has it"


def test_a_version_that_failed(tmp_path: Path) -> None:
    """While another one is served: its own reason."""
    whole = CONFIG + "version_policy { all { } }\n"
    put(tmp_path, python_model(whole, **{"2__model.py": MODEL}))
    entries = (IndexEntry("m", "1", "READY", ""), IndexEntry("m", "2", "UNAVAILABLE", "no"))
    finding = only(tmp_path, inspection(served(whole), *entries))
    assert (finding.rule, finding.message) == ("TCS02", "m version 2 is UNAVAILABLE: no")


def test_a_model_of_another_repository(repository: Path) -> None:
    """It has no file: the server is the place, with no line."""
    entries = (IndexEntry("m", "1", "READY", ""), IndexEntry("x", "1", "READY", ""))
    finding = only(repository, inspection(served(), *entries))
    assert (finding.rule, finding.path, finding.line) == ("TCS06", f"grpc://{URL}", 0)


def drift(file: str, server: str, *, completes: bool = True) -> list[ConfigDifference]:
    schema = model_config_schema()
    message = text_format.Parse(server, schema.ModelConfig())
    return differences("m", read(parse(file), schema.ModelConfig()), message, completes=completes)


FILLED = """\
name: "m" backend: "python" runtime: "" default_model_filename: "model.py"
version_policy { latest { num_versions: 1 } }
max_batch_size: 8 dynamic_batching { preferred_batch_size: 8 }
instance_group { name: "m_0" count: 1 kind: KIND_CPU }
optimization { input_pinned_memory { enable: true } output_pinned_memory { enable: true } }
"""


def test_what_triton_fills_in_is_no_difference() -> None:
    """Names, version policy, preferred sizes, pinned memory, instance groups."""
    file = "max_batch_size: 8 dynamic_batching { } instance_group [ { kind: KIND_AUTO } ]"
    assert drift(file, FILLED) == []
    assert drift("max_batch_size: 8 dynamic_batching { }", FILLED.replace('"m_0"', '"m"')) == []


@pytest.mark.parametrize(
    ("file", "server", "path", "here", "there"),
    [
        ("max_batch_size: 8", "max_batch_size: 4", "max_batch_size", "8", "4"),
        ("max_batch_size: 0", "max_batch_size: 4", "max_batch_size", "0", "4"),
        (
            "max_batch_size: 8 dynamic_batching { }",
            "max_batch_size: 8 dynamic_batching { preferred_batch_size: 4 }",
            "dynamic_batching.preferred_batch_size",
            "",
            "[ 4 ]",
        ),
        (
            "",
            'instance_group { name: "m_0" count: 2 }',
            "instance_group[0]",
            "",
            '{ name: "m_0" count: 2 }',
        ),
        ("dynamic_batching { }", "", "dynamic_batching", "{ }", ""),
        (
            'parameters { key: "a" value { string_value: "x" } }',
            'parameters { key: "a" value { string_value: "y" } }',
            "parameters.a",
            '{ string_value: "x" }',
            '{ string_value: "y" }',
        ),
        (
            'input [ { name: "a" dims: 1 }, { name: "b" dims: 2 } ]',
            'input { name: "b" dims: 2 } input { name: "a" dims: 3 }',
            "input[0].dims",
            "[ 1 ]",
            "[ 3 ]",
        ),
        ('input [ { name: "a" } ]', "", "input[0]", '{ name: "a" }', ""),
        ("", "response_cache { enable: true }", "response_cache", "", "{ enable: true }"),
    ],
)
def test_differences(file: str, server: str, path: str, here: str, there: str) -> None:
    """What is in the file and on the server, each as one would write it."""
    [one] = drift(file, server)
    assert (one.kind, one.dotted, one.local, one.remote) == ("differs", path, here, there)


def test_an_ensemble_is_decoupled_by_its_steps() -> None:
    """Nobody wrote it, nobody has to."""
    file = "ensemble_scheduling { }"
    policy = "model_transaction_policy { decoupled: true }"
    assert drift(file, f"{file} {policy}", completes=False) == []
    assert len(drift(f"{file} {policy}", file)) == 1


def test_what_a_backend_completes_is_told_apart() -> None:
    """Unless nothing there completes anything: then the file has lost it."""
    file = 'input [ { name: "a" } ]'
    server = (
        'max_batch_size: 4 input { name: "a" data_type: TYPE_FP32 dims: 1 } input { name: "b" } '
        "dynamic_batching { } model_transaction_policy { decoupled: true }"
    )
    paths = {
        "max_batch_size",
        "input[0].data_type",
        "input[0].dims",
        "input.b",
        "dynamic_batching",
        "model_transaction_policy",
    }
    assert {one.dotted for one in drift(file, server)} == paths
    assert {one.kind for one in drift(file, server)} == {"completed"}
    assert {one.kind for one in drift(file, server, completes=False)} == {"differs"}


def test_drift_points_at_the_line(repository: Path) -> None:
    """At the field's name in the file; a comment there says to ignore it."""
    live = inspection(served(CONFIG.replace("max_batch_size: 8", "max_batch_size: 4")))
    finding = only(repository, live)
    assert (finding.rule, finding.line, finding.column, finding.end) == ("TCS07", 3, 1, 15)
    assert finding.message == "max_batch_size is 8 here, and the server has 4"
    file = repository / "m" / "config.pbtxt"
    file.write_text(CONFIG.replace("size: 8", "size: 8  # tritonctl: ignore[TCS07]"))
    assert compared(repository, live) == []


def test_tensors_that_clients_are_told_of(repository: Path) -> None:
    """Against the server's own configuration."""
    model = served()
    wrong = ServedModel(
        "m", ("1",), (TensorMetadata("INPUT", "FP32", (4,)),), TENSORS[1:], model.config
    )
    finding = only(repository, inspection(wrong))
    assert finding.rule == "TCS09"
    assert (
        "the metadata of m has INPUT FP32 [4], and its configuration has INPUT FP32 [-1, 4]"
        in finding.message
    )


def test_values_of_shapes_are_left_out(repository: Path) -> None:
    """Releases differ in what they tell clients of them."""
    config = CONFIG.replace("dims: [ 4 ] }", "dims: [ 4 ] is_shape_tensor: true }")
    (repository / "m" / "config.pbtxt").write_text(config)
    model = served(config)
    wrong = ServedModel("m", ("1",), (), (), model.config)
    assert compared(repository, inspection(wrong)) == []


OPEN = frozenset({"model-repository", "shared-memory", "logging", "trace", "statistics"})


def test_what_strangers_reach(repository: Path) -> None:
    """Beyond loopback it is an error; there statistics and plain text are told, too."""
    here = compared(repository, inspection(served(), protocols=OPEN))
    assert {f.rule: f.severity for f in here} == dict.fromkeys(
        ("TCS20", "TCS21", "TCS22", "TCS23"), "advice"
    )
    there = compared(repository, inspection(served(), protocols=OPEN, beyond=True))
    assert {f.rule: f.severity for f in there} == {
        "TCS20": "error",
        "TCS21": "error",
        "TCS22": "warning",
        "TCS23": "warning",
        "TCS24": "advice",
        "TCS25": "warning",
    }
    closed = inspection(served(), beyond=True, tls=True)
    assert compared(repository, closed) == []


def test_known_holes(repository: Path) -> None:
    """Of the version that the server says it has; worse where others reach it."""
    finding = only(repository, inspection(served(), version="2.51.0"))
    assert (finding.rule, finding.severity) == ("TCS26", "advice")
    assert "CVE-" in finding.message
    beyond = inspection(served(), version="2.51.0", beyond=True, tls=True)
    assert only(repository, beyond).severity == "error"
    assert compared(repository, inspection(served(), version="own build")) == []


def test_the_server_is_the_target_of_the_other_rules(repository: Path) -> None:
    """Unless its version is no number."""
    assert server_version(inspection(served(), version="2.51.0")) == "2.51.0"
    assert server_version(inspection(served(), version="own build")) is None
    assert server_version(inspection(served(), version="")) is None


def test_formats_without_a_line(repository: Path) -> None:
    """A finding about the server has a URL and no line, in every format."""
    report = check_server([repository], inspection(served(), protocols=OPEN))
    alone = CheckReport(report.findings[:1], 1, {})
    assert FORMATS["text"](alone).startswith(f"grpc://{URL} TCS20 advice: the repository index")
    assert FORMATS["github"](alone).startswith("::notice title=TCS20::the repository index")
    [run] = json.loads(FORMATS["sarif"](alone))["runs"]
    assert run["tool"]["driver"]["rules"][0]["id"] == "TCS20"
    place = run["results"][0]["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": f"grpc://{URL}"}}


def test_who_listens_everywhere() -> None:
    """The kernel knows what the URL does not tell."""
    for address, expected in (("127.0.0.1", False), ("0.0.0.0", True)):  # noqa: S104 - the point
        with socket.create_server((address, 0)) as listening:
            port = listening.getsockname()[1]
            assert is_reachable_remotely(f"127.0.0.1:{port}") is expected
    assert is_reachable_remotely("triton.example.com:8001")
    for wrong in ("127.0.0.1", "http://127.0.0.1:8000", "127.0.0.1:grpc", ""):
        with pytest.raises(UsageError, match="is not the address"):
            is_reachable_remotely(wrong)


def test_a_server_that_is_not_there(repository: Path) -> None:
    """Exit code 7, the address, what to do."""
    done = CliRunner().invoke(application(), ["check", str(repository), "--url", "127.0.0.1:9"])
    assert done.exit_code == 7
    assert "no answer from Triton at 127.0.0.1:9" in done.stderr
    assert "host:port" in done.stderr


def test_select_and_explain(repository: Path) -> None:
    """Families of live rules are chosen as others are."""
    done = CliRunner().invoke(application(), ["check", "--explain", "TCS26"])
    assert done.exit_code == 0
    assert "TCS26 known-holes (error)" in done.stdout
    assert "If only this machine reaches the port: advice." in done.stdout
    ran = CliRunner().invoke(application(), ["check", str(repository), "--select", "TCS"])
    assert ran.exit_code == 0
