# SPDX-License-Identifier: Apache-2.0
"""The command line as users and scripts meet it: exit codes, JSON, streams, help, start-up time."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer import Typer
from typer.testing import CliRunner

from tritonctl.__main__ import main
from tritonctl.cli import GROUPS, PANELS, VERBS, application
from tritonctl.cli.examples import EXAMPLES
from tritonctl.errors import EXIT_INTERRUPTED, TritonctlError
from tritonctl.host.version import __version__

if TYPE_CHECKING:
    from tests.unit.cli.conftest import Invoke
    from tests.unit.conftest import Cli, Sandbox

HEAVY = [
    "pydantic",
    "rich.console",
    "grpc",
    "tritonclient",
    "google.protobuf",
    "yaml",
    "numpy",
    "cryptography",
]


@cache
def help_of(*words: str) -> str:
    """The help of a verb, of all verbs together; asked for once, for it takes long to draw."""
    done = CliRunner().invoke(whole(), [*words, "--help"])
    assert done.exit_code == 0, words
    return done.stdout


@cache
def whole() -> Typer:
    """The command line with every verb, made once."""
    return application()


def test_version(invoke: Invoke) -> None:
    """On standard output, nothing else."""
    done = invoke("--version")
    assert invoke("-V").stdout == done.stdout
    assert (done.exit_code, done.stdout, done.stderr) == (0, f"tritonctl {__version__}\n", "")


def test_all_verbs_are_there_and_have_help(invoke: Invoke) -> None:
    """`tritonctl --help` lists them; each has a first line and explains each option."""
    listing = invoke("--help")
    assert listing.exit_code == 0
    commands = {command.name: command for command in application().registered_commands}
    assert tuple(commands) == VERBS
    for verb in VERBS:
        assert re.search(rf"^│ {verb} +\S", listing.stdout, re.MULTILINE), verb
        docstring = commands[verb].callback.__doc__ or ""
        assert " ".join(docstring.split())[:40] in " ".join(help_of(verb).split())


def test_the_verbs_are_in_panels(invoke: Invoke) -> None:
    """In the order in which they are needed, each with its own verbs."""
    text = invoke("--help").stdout
    places = [text.index(f"─ {panel} ─") for panel in PANELS]
    assert places == sorted(places)
    assert "─ Commands ─" not in text
    for start, end, verbs in zip(places, [*places[1:], None], PANELS.values(), strict=True):
        for verb in verbs:
            assert re.search(rf"^│ {verb} +\S", text[start:end], re.MULTILINE), verb


@pytest.mark.parametrize("verb", VERBS + GROUPS)
def test_help_shows_no_types_of_python(invoke: Invoke, verb: str) -> None:
    """Neither `<bool>` nor `<list[str]>`; `tritonctl help VERB` is the same help."""
    text = help_of(verb)
    assert not re.search(r"<(bool|str|int|float|path|list)\b", text, re.IGNORECASE)
    assert invoke("help", verb).stdout == text


def test_no_help_is_cut_at_80_columns() -> None:
    """Of no verb, those of `artefacts`, `deploy` and `loadtest` included: no option ends in `…`."""
    import typer.main

    waiting: list[tuple[list[str], Any]] = [([], typer.main.get_command(whole()))]
    for words, command in waiting:
        text = help_of(*words)
        assert "…" not in text, words
        assert max(map(len, text.splitlines())) <= 80, words
        waiting += [([*words, name], one) for name, one in getattr(command, "commands", {}).items()]
    assert len(waiting) > len(VERBS)


def test_every_verb_has_two_examples() -> None:
    """That its own command line takes, on lines of their own in its help."""
    import typer.main

    waiting: list[tuple[list[str], Any]] = [([], typer.main.get_command(whole()))]
    verbs = []
    for words, command in waiting:
        if hasattr(command, "commands"):
            waiting += [([*words, name], one) for name, one in command.commands.items()]
            continue
        verb = " ".join(words)
        verbs.append(verb)
        lines = [" ".join(("tritonctl", verb, given)).strip() for given in EXAMPLES[verb]]
        assert len(set(lines)) == 2, verb
        text = help_of(*words)
        assert {line.strip() for line in text.splitlines()} >= set(lines), verb
        for line in lines:
            arguments = shlex.split(line.partition(" > ")[0])[1 + len(words) :]
            command.make_context(verb, arguments)
    assert sorted(verbs) == sorted(EXAMPLES)


def test_every_option_is_explained() -> None:
    """No option without a help text, those of `artefacts` and `loadtest` included."""
    import typer.main

    groups: list[Any] = [typer.main.get_command(application())]
    for group in groups:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                groups.append(command)
                continue
            for parameter in command.params:
                assert getattr(parameter, "help", None), f"{name}: {parameter.name}"
    assert len(groups) > 2


def test_ctrl_c_while_python_still_reads_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interruption like any other, without a traceback."""

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tritonctl.cli.application", interrupted)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == EXIT_INTERRUPTED


def test_help_imports_nothing_heavy() -> None:
    """The command line answers at once: a verb pays for its libraries, `--help` does not."""
    script = (
        "import sys; from tritonctl.cli import application; application(['--help'])\n"
        f"print([m for m in {HEAVY} if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, encoding="utf-8", check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("verb", VERBS + GROUPS)
def test_a_verb_is_made_alone(verb: str) -> None:
    """`tritonctl check` makes nothing but check, the same as among all the others; `-h` is help."""
    import typer.main

    arguments = [verb, "-h"]
    alone = application(arguments)
    assert list(typer.main.get_command(alone).commands) == [verb]  # type: ignore[attr-defined]
    told = CliRunner().invoke(alone, arguments)
    assert (told.exit_code, told.stdout) == (0, help_of(verb))


def test_an_unknown_verb_is_told_the_nearest() -> None:
    """Though a known one is made alone."""
    done = subprocess.run(
        [sys.executable, "-m", "tritonctl", "chekc"],
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 2
    assert "check" in done.stderr


def test_build_then_nothing_to_do(cli: Cli) -> None:
    """Exit code 0; the outcome on standard output, progress on standard error."""
    first = cli.process("build")
    assert first.returncode == 0, first.stderr
    assert re.fullmatch(
        r"speller: built scripted int8 in 1\.5 s\n  /.*/engines/speller/\w{16}\n", first.stdout
    )
    assert "Building speller (scripted, int8)" in first.stderr
    second = cli("build")
    assert second.stdout.startswith("speller: up to date (scripted int8, /")
    assert second.stderr == ""


def test_build_json(invoke: Invoke) -> None:
    """One object, parseable, nothing else on standard output; --quiet silences the rest."""
    done = invoke("build", "--json", "--quiet")
    record = json.loads(done.stdout)
    assert record["model"] == "speller"
    assert record["built"] is True
    assert Path(record["folder"]).is_dir()
    assert record["durations_seconds"] == {"load": 0.5, "convert": 1.0}
    assert record["evaluation"] is None
    files = Path(record["folder"]).glob("*/*")
    assert record["size_bytes"] == sum(file.stat().st_size for file in files)
    assert done.stderr == ""


def test_render_twice(invoke: Invoke, built: Sandbox) -> None:
    """The second time says that nothing changed."""
    assert invoke("build").stdout.startswith("speller: up to date")
    first, second = (invoke("render", "--json") for _ in range(2))
    assert json.loads(first.stdout)["changed"][-1] == "speller"
    record = json.loads(second.stdout)
    assert (record["changed"], len(record["unchanged"]), record["removed"]) == ([], 4, [])
    assert "  unchanged  speller_engine\n" in invoke("render").stdout


SET_CONTAINER = [
    *("--set", "models.speller.engine.runner=container"),
    *("--set", "models.speller.engine.target.image=none:0"),
]
CODES = [
    (2, ["nonsense"], "No such command 'nonsense'"),
    (2, ["build", "--nonsense"], "No such option"),
    (2, ["logs", "--lines", "-1"], "Invalid value"),
    (2, ["init"], "tritonctl.yaml already exists"),
    (2, ["build", "--set", "server.grcp_port=1"], "unknown key `grcp_port` in `server`"),
    (2, ["build", "other"], "the project has no model `other`"),
    (2, ["build", "--project", "nowhere.yaml"], "nowhere.yaml does not exist"),
    (2, ["build", "--env", "gpu"], "unknown profile `gpu`"),
    (2, ["build", "--set", "server.grpc_port"], "is not KEY=VALUE"),
    (2, ["build", "--set", "models.speller.engine.builder=none"], "unknown builder `none`"),
    (2, ["plan", "--set", "models.speller.engine.precision=int9"], "has no precision `int9`"),
    (2, ["build", "--runner", "venv"], "has no runner `venv`"),
    (2, ["plan", "--gpus", "H1000"], "unknown GPU `H1000`"),
    (2, ["plan", "--device-memory", "80 apples"], "is not an amount of memory"),
    (2, ["check", "--target-version", "latest"], "unknown version of Triton: latest"),
    (2, ["init", "none.onnx", "-o", "new"], "none.onnx does not exist"),
    (4, ["build", *SET_CONTAINER], "docker"),
    (5, ["build", "--set", "models.speller.engine.options.behaviour=refuses"], "out of fashion"),
    (6, ["render"], "model speller has no engine"),
    (7, ["status"], "tritonctl up"),
    (7, ["logs"], "no server log yet"),
    (7, ["generate", "speller", "7"], "tritonctl up"),
    (7, ["chat", "speller"], "tritonctl up"),
    (7, ["generate", "speller", "7", "--url", "127.0.0.1:1"], "no answer from Triton at"),
    (
        2,
        ["generate", "speller", "7", "--url", "127.0.0.1:1", "--max-tokens", "9999999999"],
        "INT32",
    ),
]


@pytest.mark.parametrize(("code", "arguments", "words"), CODES, ids=[" ".join(c[1]) for c in CODES])
def test_exit_codes(invoke: Invoke, code: int, arguments: list[str], words: str) -> None:
    """Each kind of failure has its code; the reason is on standard error, no traceback."""
    done = invoke(*arguments)
    assert done.exit_code == code
    assert words in " ".join(done.stderr.split())
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_no_project(cli: Cli, tmp_path: Path) -> None:
    """Outside any project: exit code 3 and what to do."""
    elsewhere = type(cli)(tmp_path)
    done = elsewhere("build")
    assert done.returncode == 3
    assert f"no tritonctl.yaml in {tmp_path} or any folder above it" in done.stderr
    assert "try: write one with `tritonctl init`, or name one with --project" in done.stderr


def test_error_as_json(cli: Cli) -> None:
    """On standard output for scripts; for people the same on standard error."""
    done = cli.process("build", "--json", "--set", "models.speller.engine.options.behaviour=crash")
    assert done.returncode == 5
    record = json.loads(done.stdout)
    assert record["error"] == "BuildFailedError"
    assert record["exit_code"] == 5
    assert record["problem"].startswith("builder scripted died while building speller (status 1)")
    assert "ZeroDivisionError" in record["details"]
    assert record["remedy"].startswith("read ")
    assert "error: builder scripted died" in done.stderr
    assert "  │ ZeroDivisionError: a bug of the builder" in done.stderr


def test_error_lines_are_not_wrapped(
    invoke: Invoke, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths can be copied from a narrow terminal, and `grep` finds them."""
    monkeypatch.setenv("COLUMNS", "30")
    done = invoke("build", "--set", "models.speller.engine.options.behaviour=crash")
    log = sandbox.root / ".tritonctl" / "failed-builds" / "speller.log"
    assert f"  try: read {log}\n" in done.stderr


def test_square_brackets_are_text(invoke: Invoke) -> None:
    """Messages are not markup: what the user wrote comes back as it was."""
    done = invoke("build", "[red]x[/red]")
    assert "the project has no model `[red]x[/red]`" in done.stderr


def test_a_bug_is_told_as_one(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 1, no traceback on the terminal, but a log file with all of it."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("surprise")

    monkeypatch.setattr("tritonctl.project.file.load_project", broken)
    done = invoke("render", "--env", "p")
    assert done.exit_code == 1
    assert "Traceback" not in done.stderr
    match = re.search(r"this is a bug in tritonctl\. Details: (\S+)\n", done.stderr)
    assert match is not None
    log = Path(match[1])
    text = log.read_text(encoding="utf-8")
    log.unlink()
    assert text.startswith(f"tritonctl {__version__}, Python ")
    assert "command: tritonctl render --env p\n" in text
    assert "RuntimeError: surprise" in text


def test_init_makes_a_valid_project(invoke: Invoke, tmp_path: Path) -> None:
    """A folder that is not there yet; a second time only with --force."""
    folder = tmp_path / "new"
    done = invoke("init", "-o", str(folder), "--name", "m", "--json")
    assert json.loads(done.stdout)["file"] == str(folder / "tritonctl.yaml")
    assert invoke("build", "--project", str(folder)).exit_code == 3  # no checkpoint there
    (folder / "tritonctl.yaml").write_text("mine", encoding="utf-8")
    assert invoke("init", "-o", str(folder)).exit_code == 2
    assert (folder / "tritonctl.yaml").read_text(encoding="utf-8") == "mine"
    assert invoke("init", "-o", str(folder), "--force").exit_code == 0
    assert (folder / "tritonctl.yaml").read_text(encoding="utf-8") != "mine"


def test_init_refuses_a_name_that_triton_cannot_serve(invoke: Invoke, tmp_path: Path) -> None:
    """Before anything is written."""
    done = invoke("init", "-o", str(tmp_path / "new"), "--name", "my model")
    assert done.exit_code == 2
    assert "`my model` cannot be a Triton model's name" in done.stderr
    assert not (tmp_path / "new").exists()


def test_schema_is_json(invoke: Invoke) -> None:
    """For editors: the schema alone, on standard output."""
    done = invoke("schema")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["title"] == "Project"


def test_nohup_is_respected(invoke: Invoke) -> None:
    """A build started under nohup goes on when the terminal closes."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    invoke("down")
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    invoke("down")
    assert signal.getsignal(signal.SIGHUP) not in {signal.SIG_IGN, signal.SIG_DFL}


def test_down_when_nothing_runs(invoke: Invoke) -> None:
    """Not an error: what was wanted is the case."""
    done = invoke("down", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout) == {
        "schema": "tritonctl.down/1",
        "stopped": False,
        "pid": None,
        "gateway": False,
    }


def test_down_when_only_envoy_runs(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its servers have crashed: what was stopped is said, to people and to programs."""
    monkeypatch.setattr("tritonctl.runtimes.embedded.gateway.running_gateway", lambda _: object())
    monkeypatch.setattr("tritonctl.runtimes.lifecycle.gateway.stop", lambda _: None)
    assert "Envoy is stopped; no Triton was running" in invoke("down").stdout
    told = json.loads(invoke("down", "--json").stdout)
    assert (told["stopped"], told["pid"], told["gateway"]) == (False, None, True)


def test_logs(invoke: Invoke, sandbox: Sandbox) -> None:
    """The last lines, also of a server that has stopped, whatever bytes they hold."""
    log = sandbox.root / ".tritonctl" / "server" / "triton.log"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"one\ntwo\n\xffthree\n")
    assert invoke("logs", "-n", "2").stdout == "two\n\ufffdthree\n"
    assert invoke("logs").stdout == "one\ntwo\n\ufffdthree\n"
    assert invoke("logs", "-n", "0").stdout == ""


def test_reader_that_has_had_enough(cli: Cli, sandbox: Sandbox) -> None:
    """`tritonctl logs | head -1`: exit code 0 and not a word about a broken pipe."""
    log = sandbox.root / ".tritonctl" / "server" / "triton.log"
    log.parent.mkdir(parents=True)
    log.write_text("line\n" * 200_000, encoding="utf-8")
    with cli.start("logs", "-n", "200000") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "line\n"
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(timeout=30) == 0


@pytest.mark.parametrize("address", ["localhost", "::1", "[::1]", "127.0.0.1:8001", ""])
def test_up_on_an_address_that_triton_does_not_take(
    invoke: Invoke, built: Sandbox, address: str
) -> None:
    """Its HTTP endpoint would listen on 255.255.255.255, and never be ready."""
    done = invoke("up", "--set", f"server.address='{address}'")
    assert done.exit_code == 3
    assert "is not an IPv4 address" in done.stderr
    assert "set 127.0.0.1" in done.stderr


@pytest.mark.parametrize("arguments", [["schema"], ["build", "--json"], ["artefacts", "list"]])
def test_standard_output_on_a_full_disk(built: Sandbox, arguments: list[str]) -> None:
    """It is the machine's fault, and told once."""
    command = [sys.executable, "-m", "tritonctl", *arguments]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            command, cwd=built.root, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 4
    assert "error: standard output cannot be written: No space left on device\n" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize("closing", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("verb", ["artefacts list", "build"])
def test_closed_streams(built: Sandbox, verb: str, closing: str) -> None:
    """Whoever closes one does not want to hear; the work is done all the same."""
    line = f"{sys.executable} -m tritonctl {verb} {closing}"
    done = subprocess.run(["/bin/sh", "-c", line], cwd=built.root, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_encoding_that_lacks_characters(built: Sandbox) -> None:
    """They are escaped."""
    (built.root / "ü").mkdir()
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "tritonctl", "init", "-o", "ü"]
    done = subprocess.run(
        command, cwd=built.root, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "wrote \\xfc/tritonctl.yaml" in done.stdout


def test_a_bug_where_no_file_can_be_written(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known of it is shown instead."""

    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tritonctl.project.file.load_project", broken)
    monkeypatch.setattr("tempfile.NamedTemporaryFile", full)
    done = invoke("build")
    assert done.exit_code == 1
    assert "ZeroDivisionError" in done.stderr


def test_an_interruption_waits_for_nothing(built: Sandbox) -> None:
    """Not for what ends with Python either, such as a gRPC channel amid a call."""
    code = (
        "import atexit, sys, time, tritonctl.project.file, tritonctl.__main__ as program\n"
        "def interrupt(*_, **__):\n"
        "    raise KeyboardInterrupt\n"
        "tritonctl.project.file.load_project = interrupt\n"
        "atexit.register(time.sleep, 600)\n"
        "sys.argv = ['tritonctl', 'build']\n"
        "program.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=built.root, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 130
    assert b"interrupted; no partial files remain" in done.stderr


def test_every_error_has_its_own_exit_code() -> None:
    """The tree of tritonctl.errors: 1 to 8 and 130, inherited by special cases."""
    import tritonctl.runtimes.kubernetes.api_errors  # noqa: F401 - whose errors are of the tree

    def tree(kind: type[TritonctlError]) -> dict[str, int]:
        found: dict[str, int] = {}
        for child in kind.__subclasses__():
            found |= {child.__name__: child.exit_code} | tree(child)
        return found

    assert tree(TritonctlError) == {
        "UnexpectedError": 1,
        "UsageError": 2,
        "RequestRejectedError": 2,
        "ItemsRejectedError": 2,
        "ModelFailedError": 7,
        "ConfigurationError": 3,
        "ManifestRefusedError": 3,
        "HostError": 4,
        "ClusterError": 4,
        "CommandFailedError": 4,
        "BuildFailedError": 5,
        "RepositoryError": 6,
        "ServerError": 7,
        "ServerBusyError": 7,
        "SettingsRefusedError": 7,
        "StepGoneError": 7,
        "SilentServerError": 7,
        "SloMissedError": 8,
        "RolledBackError": 8,
        "InvalidMeasurementError": 9,
        "InterruptionError": 130,
    }
