# SPDX-License-Identifier: Apache-2.0
"""A server that drains is asked to unload its ensembles, so that it refuses new requests."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tritonctl.protocol.restrictions import restriction_arguments
from tritonctl.supervision.new_requests import outer_ensembles, start_unloading


def test_ensembles_that_no_ensemble_calls(tmp_path: Path) -> None:
    """A step of another must stay until the requests in flight have called it."""
    configs = {
        "chat": 'ensemble_scheduling { step [ { model_name: "cached" } ] }',
        "cached": 'ensemble_scheduling { step { model_name:"engine" } }',
        "embed": 'ensemble_scheduling { step [ { model_name: "encoder" } ] }',
        "engine": 'backend: "python"',
    }
    for name, text in configs.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.pbtxt").write_text(text, encoding="utf-8")
    assert outer_ensembles(tmp_path) == ["chat", "embed"]
    assert outer_ensembles(tmp_path, ["chat", "cached", "engine"]) == ["chat"]


def test_the_server_is_asked_with_its_token() -> None:
    """At its own port, for each of them."""
    asked: list[tuple[str, str | None]] = []
    all_asked = threading.Semaphore(0)

    class Triton(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append((self.path, self.headers["tritonctl-token"]))
            self.send_response(200)
            self.end_headers()
            all_asked.release()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Triton)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = f"--http-port={server.server_port}"
    argv = ["tritonserver", "--http-address=0.0.0.0", port, *restriction_arguments("a=secret")]
    start_unloading(argv, ["m", "n"], pytest.fail)
    assert all_asked.acquire(timeout=10)
    assert all_asked.acquire(timeout=10)
    server.shutdown()
    server.server_close()
    assert sorted(asked) == [
        ("/v2/repository/models/m/unload", "a=secret"),
        ("/v2/repository/models/n/unload", "a=secret"),
    ]


def test_a_server_that_does_not_answer_delays_nothing() -> None:
    """Nobody listens on that port."""
    start_unloading(["tritonserver", "--http-address=127.0.0.1", "--http-port=1"], ["m"], print)
