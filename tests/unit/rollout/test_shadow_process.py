# SPDX-License-Identifier: Apache-2.0
"""The shadower as a process beside a controller: started, started again, ended; and its page."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path

from tests.fakes.text_server import MODEL, text_server
from tests.json_page import as_documented
from tests.unit.conftest import Cli, Sandbox
from tests.unit.rollout.test_shadower import text
from tritonctl.rollout.comparison_page import comparison_page
from tritonctl.rollout.journal import JournalEntry, JournalEvent, open_journal
from tritonctl.rollout.measures import Measurement
from tritonctl.rollout.metrics import Distances
from tritonctl.rollout.shadow.comparing import shadow_comparisons
from tritonctl.rollout.shadow.comparison_log import (
    PROMPTS,
    ComparisonLog,
    ComparisonRecord,
    ShadowCounts,
)
from tritonctl.rollout.shadow.config import ShadowConfig, ShadowedServer
from tritonctl.rollout.shadow.process import ShadowProcess

PATIENCE_SECONDS = 60.0


def until(what: object, folder: Path) -> None:
    """Wait for a truth; what the process says where it does not come."""
    assert callable(what)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not what():
        assert time.monotonic() < deadline, (folder / "shadow.log").read_text(encoding="utf-8")
        time.sleep(0.02)


def listens(socket: Path) -> bool:
    """Whether somebody takes connections: that comes after its file."""

    async def go() -> None:
        _, writer = await asyncio.open_unix_connection(socket)
        writer.close()

    try:
        asyncio.run(go())
    except OSError:
        return False
    return True


def send(socket: Path, content: bytes) -> None:
    """A copy of a stream of gRPC, as Envoy sends it."""

    async def go() -> None:
        reader, writer = await asyncio.open_unix_connection(socket)
        path = b"POST /inference.GRPCInferenceService/ModelStreamInfer HTTP/1.1\r\n"
        body = b"\0" + len(content).to_bytes(4, "big") + content
        writer.write(path + b"content-type: application/grpc\r\n")
        writer.write(b"content-length: %d\r\n\r\n%b" % (len(body), body))
        assert await reader.readuntil(b"\r\n\r\n")
        writer.close()

    asyncio.run(go())


def test_a_shadower_beside_its_controller(tmp_path: Path) -> None:
    """It finds what differs; killed, it is started again and goes on; its page quotes on demand."""
    socket = tmp_path / "s" / "copies"
    page = tmp_path / "metrics"
    page.write_text("")
    with text_server() as stable, text_server() as candidate:
        candidate.shift = 3
        sides = (
            ShadowedServer(url=one.url, metrics_url=page.as_uri()) for one in (stable, candidate)
        )
        config = ShadowConfig(
            socket=socket,
            folder=tmp_path,
            **dict(zip(("stable", "candidate"), sides, strict=True)),
            models=(MODEL,),
            keep_prompts=True,
        )
        now = [0.0]
        shadowing = ShadowProcess(config, clock=lambda: now[0])
        try:
            until(lambda: listens(socket), tmp_path)
            content = text("a <secret>").content
            assert content is not None
            send(socket, content)
            found: list[Distances] = []

            def has(count: int) -> bool:
                found.extend(shadowing.new_distances())
                return len(found) == count

            until(lambda: has(1), tmp_path)
            assert found == [Distances(0, 1)]
            first = shadowing.pid
            assert first is not None
            os.kill(first, signal.SIGKILL)
            until(lambda: shadowing.pid is None, tmp_path)
            assert shadowing.new_distances() == []
            assert shadowing.pid is None  # not so soon
            now[0] = 6.0
            socket.unlink()
            assert shadowing.new_distances() == []
            assert shadowing.pid not in (None, first)
            until(lambda: listens(socket), tmp_path)
            send(socket, content)
            until(lambda: has(2), tmp_path)
        finally:
            shadowing.close()
    assert (tmp_path / "shadow.json").stat().st_mode & 0o777 == 0o600
    assert not socket.exists()
    assert ShadowCounts.read(tmp_path).compared == 1
    assert "secret" not in (tmp_path / "shadow.log").read_text(encoding="utf-8")
    pages(tmp_path)


def pages(folder: Path) -> None:
    """With prompts, without, and where none were kept."""
    names = "1-stable", "2-candidate"
    [shown] = shadow_comparisons(folder, names, tolerated=0.0, show_texts=True)
    assert (shown.questions, shown.different.count, shown.noise.count) == (2, 2, 0)
    assert shown.durations[0].name == "time to the first token, median"
    assert json.loads(shown.examples[0].prompt or "")["text_input"] == "a <secret>"
    counts = ShadowCounts.read(folder)
    page = comparison_page([shown], title="t", show_texts=True, counts=counts)
    assert "a &lt;secret&gt;" in page
    assert "Copies of requests" in page
    [hidden] = shadow_comparisons(folder, names, tolerated=0.0, show_texts=False)
    page = comparison_page([hidden], title="t", show_texts=False, counts=counts)
    assert "secret" not in page
    assert "token 3; 5 and 5 tokens" in page
    (folder / PROMPTS).unlink()
    [lost] = shadow_comparisons(folder, names, tolerated=0.0, show_texts=True)
    assert "(not kept)" in comparison_page([lost], title="t", show_texts=True, counts=counts)
    assert shadow_comparisons(folder / "none", names, tolerated=0.0, show_texts=True) == []


def test_what_the_command_shows(cli: Cli, sandbox: Sandbox, tmp_path: Path) -> None:
    """Figures and counts, before and after something was compared; prompts only on demand."""
    folder = sandbox.root / ".tritonctl" / "rollouts" / "1"
    about = {"slot": "b", "release": "2-b", "stable": "1-a", "settings": {}}
    with open_journal(folder.parent, 1) as (journal, _):
        journal.add(JournalEntry(0.0, JournalEvent.STARTED, about))
    empty = cli("rollout", "differences")
    assert "copies of requests" in empty.stdout
    assert "it has no shadow: set `rollout.shadow`" in empty.stderr
    lines = ComparisonLog(folder)
    for number in range(30):
        at = 1000.0 + number
        apart = Measurement(0.0, 1.0, (False, True), "token 3; 5 and 5 tokens")
        lines.add(ComparisonRecord(at, MODEL, "text_generation", apart))
        answers = {"first": "a", "second": "a", "candidate": "b"}
        lines.add_prompt({"at": at, "model": MODEL, "text_input": "a prompt", "answers": answers})
    report = tmp_path / "differences.html"
    done = cli("rollout", "differences", "-o", report, "--json")
    record = as_documented("rollout differences", done.stdout)
    assert record["comparisons"][0]["verdict"] == "different beyond noise"
    assert "a prompt" not in done.stdout + report.read_text(encoding="utf-8")
    assert cli("rollout", "differences", "-o", report, "--show-prompts").returncode == 0
    assert "a prompt" in report.read_text(encoding="utf-8")
