# SPDX-License-Identifier: Apache-2.0
"""`tritonctl artefacts` as users and scripts meet it."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tritonctl.cli.artefacts import app
from tritonctl.engines.builds.engine import build_engine
from tritonctl.host.progress import Silent

if TYPE_CHECKING:
    from tests.unit.conftest import Cli, Sandbox


@pytest.fixture
def two(built: Sandbox) -> Sandbox:
    """A project that needs its int8 engine and has another one in fp32."""
    built.engine["precision"] = "fp32"
    build_engine(built.load(), "speller", Silent())
    built.engine["precision"] = "int8"
    built.write()
    return built


def _names(two: Sandbox) -> dict[str, str]:
    """The artefacts' addresses by precision."""
    folders = (two.root / ".tritonctl" / "engines" / "speller").iterdir()
    manifests = [json.loads((folder / "manifest.json").read_bytes()) for folder in folders]
    return {m["request"]["precision"]: f"speller/{m['fingerprint'][:16]}" for m in manifests}


def _json(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_option_is_explained() -> None:
    """No option without a help text."""
    import typer.main

    group: Any = typer.main.get_command(app)
    assert list(group.commands) == ["list", "show", "diff", "verify", "prune"]
    for name, command in group.commands.items():
        assert command.help, name
        for parameter in command.params:
            assert getattr(parameter, "help", None), f"{name}: {parameter.name}"


def test_list(cli: Cli, two: Sandbox) -> None:
    """One line an artefact; the same for scripts."""
    done = cli("artefacts", "list")
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert " ".join(lines[0]) == "model artefact engine size age in use"
    rows = {line[3]: line for line in lines[1:]}
    assert rows["int8"][:4] == ["speller", _names(two)["int8"][8:], "scripted", "int8"]
    assert rows["int8"][-3:] == ["needed", "(no", "profile)"]
    assert rows["fp32"][-1] == "no"
    records = {r["precision"]: r for r in _json(cli("artefacts", "list", "--json"))["artefacts"]}
    assert {p: r["in_use"] for p, r in records.items()} == {"int8": True, "fp32": False}
    assert records["int8"]["profiles"] == [None]
    assert records["fp32"]["size_bytes"] > 0


def test_list_of_nothing(cli: Cli) -> None:
    """A project that was never built."""
    assert _json(cli("artefacts", "list", "--json"))["artefacts"] == []
    assert cli("artefacts", "list").stdout.startswith("model  artefact")
    assert cli("artefacts", "verify").stdout == "no artefacts\n"
    assert cli("artefacts", "prune").stdout == "nothing to remove\n"


def test_show(cli: Cli, two: Sandbox) -> None:
    """Each field on a line, or the manifest as it is."""
    name = _names(two)["fp32"]
    text = cli("artefacts", "show", name).stdout
    rows = [line.split() for line in text.splitlines()]
    assert ["request.precision", "fp32"] in rows
    record = _json(cli("artefacts", "show", name, "--json"))
    folder = two.root / ".tritonctl" / "engines" / name
    written = json.loads((folder / "manifest.json").read_bytes())
    assert {key: record[key] for key in written} == written
    shown = {row[0]: row[1:] for row in rows if row}
    for file in written["result"]["files"]:
        assert shown[f"result.files.{file['path']}"] == [str(file["size"]), "B"]
    for kind, tensors in written["result"]["tensors"].items():
        for one in tensors:
            assert shown[f"result.tensors.{kind}.{one['name']}"][0] == one["data_type"]


def test_diff(cli: Cli, two: Sandbox) -> None:
    """Field, both values; alike artefacts say so."""
    names = _names(two)
    lines = cli("artefacts", "diff", names["int8"], names["fp32"]).stdout.splitlines()
    at = lines.index("request.precision")
    assert lines[at + 1].split() == [names["int8"], "int8"]
    assert lines[at + 2].split() == [names["fp32"], "fp32"]
    record = _json(cli("artefacts", "diff", names["int8"], names["fp32"], "--json"))
    assert [d["field"] for d in record["differences"] if not d["is_path"]] == [
        "request.precision",
        "files.engine/openvino_model.xml.sha256",
    ]
    same = cli("artefacts", "diff", names["int8"], names["int8"])
    assert same.stdout == f"{names['int8']} and {names['int8']} do not differ\n"


def test_verify(cli: Cli, two: Sandbox) -> None:
    """Exit code 6 names the artefact, the file and the command; the other artefact is whole."""
    names = _names(two)
    assert cli("artefacts", "verify").returncode == 0
    file = two.root / ".tritonctl" / "engines" / names["fp32"] / "engine" / "openvino_model.bin"
    file.unlink()
    done = cli("artefacts", "verify")
    assert done.returncode == 6
    assert f"{names['int8']}: intact\n" in done.stdout
    assert f"{names['fp32']}: DAMAGED\n  missing    engine/openvino_model.bin: " in done.stdout
    assert "make it again: `tritonctl build --force speller`" in done.stderr
    assert cli("artefacts", "verify", names["int8"]).returncode == 0
    record = json.loads(cli("artefacts", "verify", "--json", "-q").stdout)
    assert record["artefacts"][names["fp32"]][0]["path"] == "engine/openvino_model.bin"


def test_ambiguous_address(cli: Cli, two: Sandbox) -> None:
    """Exit code 2; the candidates are there to be copied."""
    done = cli("artefacts", "show", "speller")
    assert done.returncode == 2
    assert all(name in done.stderr for name in _names(two).values())


def test_prune_asks(cli: Cli, two: Sandbox) -> None:
    """Without an answer nothing goes; --dry-run needs none, --yes is one."""
    names = _names(two)
    asked = cli("artefacts", "prune")
    assert asked.returncode == 2
    assert "nothing removed" in asked.stderr
    assert cli("artefacts", "prune", "--json").returncode == 2
    dry = _json(cli("artefacts", "prune", "--dry-run", "--json"))
    assert (dry["removed"], dry["retained"]) == ([names["fp32"]], [names["int8"]])
    assert list(_names(two)) != ["int8"]
    done = cli("artefacts", "prune", "--yes")
    assert done.returncode == 0
    assert done.stdout.startswith(f"removed {names['fp32']} (fp32)\n")
    assert list(_names(two)) == ["int8"]
    assert dry["freed_bytes"] > 0


@pytest.mark.parametrize(("answer", "code", "left"), [("n\n", 2, 2), ("y\n", 0, 1)])
def test_prune_answered(cli: Cli, two: Sandbox, answer: str, code: int, left: int) -> None:
    """By a person at the prompt."""
    with cli.start("artefacts", "prune", stdin=subprocess.PIPE) as process:
        process.communicate(answer)
    assert process.returncode == code
    assert len(_names(two)) == left
