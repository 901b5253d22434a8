# SPDX-License-Identifier: Apache-2.0
"""Triton's log, as tritonserver 2.51 wrote it, read for the reason why it did not come up."""

from __future__ import annotations

from pathlib import Path

import pytest

from tritonctl.runtimes.server_log import explain_failure, load_failures, loading_models, tail

LOAD_FAILED = """\
I1121 03:26:51.114872 6222 python_be.cc:2249] "TRITONBACKEND_ModelInstanceInitialize: speller_engin\
e_0_0 (CPU device 0)"
E1121 03:26:52.393215 6222 model_lifecycle.cc:642] "failed to load 'speller_engine' version 1: Inte\
rnal: TritonModelException: model speller_engine: parameter num_kv_blocks is missing"
I1121 03:26:52.393301 6222 model_lifecycle.cc:777] "failed to load 'speller_engine'"
E1121 03:26:52.394111 6222 model_repository_manager.cc:614] "Invalid argument: ensemble 'speller' d\
epends on 'speller_engine' which has no loaded version."
error: creating server: Internal - failed to load all models
"""
PORT_TAKEN = """\
I1121 03:30:01.220001 6300 grpc_server.cc:2558] "Started GRPCInferenceService at 127.0.0.1:8001"
E1121 03:30:01.223310 6300 main.cc:354] "failed to start HTTP service: Unavailable - Socket '127.0.\
0.1:8000' already in use "
"""


def _log(tmp_path: Path, text: str) -> Path:
    log = tmp_path / "triton.log"
    log.write_text(text, encoding="utf-8")
    return log


def test_tail(tmp_path: Path) -> None:
    """The last lines without line ends; nothing where there is no log or no line is wanted."""
    log = _log(tmp_path, "a\nb\nc\n")
    assert tail(log, 2) == ["b", "c"]
    assert tail(log, 0) == []
    assert tail(log) == ["a", "b", "c"]
    assert tail(tmp_path / "none") == []


def test_tail_of_a_log_that_is_not_utf8(tmp_path: Path) -> None:
    """A model may print anything."""
    (tmp_path / "log").write_bytes(b"ok\n\xff\xfe\n")
    assert tail(tmp_path / "log") == ["ok", "\ufffd\ufffd"]


def test_load_failures_in_triton_s_words(tmp_path: Path) -> None:
    """The reason, without Triton's decoration."""
    assert load_failures(_log(tmp_path, LOAD_FAILED)) == {
        "speller_engine": "Internal: TritonModelException: model speller_engine: parameter "
        "num_kv_blocks is missing"
    }


def test_last_reason_counts(tmp_path: Path) -> None:
    """A model that was tried twice is told by its latest failure."""
    later = LOAD_FAILED.replace("num_kv_blocks is missing", "block_size is wrong")
    failures = load_failures(_log(tmp_path, LOAD_FAILED + later))
    assert failures["speller_engine"].endswith("block_size is wrong")


def test_explanation_of_a_load_failure(tmp_path: Path) -> None:
    """Model and reason in the problem, each once, the log's path as the next step."""
    log = _log(tmp_path, LOAD_FAILED)
    error = explain_failure(log, "tritonserver exited during startup")
    assert error.exit_code == 7
    assert error.problem == (
        "tritonserver exited during startup\n"
        "model speller_engine: Internal: TritonModelException: model speller_engine: parameter "
        "num_kv_blocks is missing"
    )
    assert error.remedy == f"the full log is {log}"
    assert error.details is None


OWNERS = {"speller": "speller", "speller_engine": "speller", "mine": "mine", "other": "other"}
TRACEBACK = """\
I1121 03:26:51.114872 6222 model_lifecycle.cc:472] "loading: mine:1"
I1121 03:26:51.114872 6222 model_lifecycle.cc:472] "loading: other:1"
I1121 03:26:51.214872 6222 model_lifecycle.cc:839] "successfully loaded 'other'"
E1121 03:26:51.239294 6222 model_lifecycle.cc:642] "failed to load 'mine' version 1: Internal: Mod\
uleNotFoundError: No module named 'pandas'\\n\\nAt:\\n  /r/mine/1/model.py(3): <module>\\n  \
<frozen importlib._bootstrap>(241): _call_with_frames_removed\\n"
"""
POLLED = """\
E1121 03:26:51.239294 6222 model_repository_manager.cc:1460] "Poll failed for model directory 'mine\
': failed to read text proto from /r/mine/config.pbtxt"
"""
MISWIRED = """\
E1121 03:26:51.239294 6222 model_repository_manager.cc:703] "Invalid argument: in ensemble mine, en\
semble tensor x: inconsistent data type: TYPE_INT32 is inferred from model mine"
"""
SLOW = """\
I1121 03:26:51.114872 6222 model_lifecycle.cc:472] "loading: mine:1"
I1121 03:26:51.114872 6222 model_lifecycle.cc:472] "loading: other:1"
I1121 03:26:51.214872 6222 model_lifecycle.cc:839] "successfully loaded 'other'"
"""


@pytest.mark.parametrize(
    ("text", "reason", "others"),
    [
        (LOAD_FAILED, "model speller_engine: Internal: TritonModel", "mine,other"),
        (TRACEBACK, "No module named 'pandas'\n  /r/mine/1/model.py(3): <module>", "other,speller"),
        (POLLED, "model mine: failed to read text proto from /r/mine/config.", "other,speller"),
        (MISWIRED, "model mine: Invalid argument: in ensemble mine, ensemble t", "other,speller"),
        (TRACEBACK + LOAD_FAILED, "model mine: Internal: Module", "other"),
    ],
)
def test_the_others_can_be_served(tmp_path: Path, text: str, reason: str, others: str) -> None:
    """Who failed, why, once; and the command for the models that need nothing of it."""
    error = explain_failure(_log(tmp_path, text), "it ended", OWNERS)
    assert error.problem.count(reason) == 1
    assert "frozen" not in error.problem
    assert f"`tritonctl up --models {others}`" in error.remedy
    assert error.details is None


def test_what_is_late(tmp_path: Path) -> None:
    """It loads still: the others can be served; where the server ended, that says nothing."""
    log = _log(tmp_path, SLOW)
    error = explain_failure(log, "not in time", OWNERS, loading_models(log))
    assert error.problem == "not in time\nstill loading: mine"
    assert "`tritonctl up --models other,speller`" in error.remedy
    ended = explain_failure(log, "it ended", OWNERS)
    assert (ended.problem, "--models" in ended.remedy) == ("it ended", False)
    assert "successfully loaded 'other'" in (ended.details or "")


def test_no_other_is_left(tmp_path: Path) -> None:
    """Also an ensemble by hand, over a step that failed, cannot be served."""
    owners = {"speller_engine": "speller_engine", "speller": "speller"}
    error = explain_failure(_log(tmp_path, LOAD_FAILED), "it ended", owners)
    assert "--models" not in error.remedy


def test_tables_are_no_evidence(tmp_path: Path) -> None:
    """Triton prints its options at every start."""
    table = "+----+\n| id |\n+----+\n" * 20
    error = explain_failure(_log(tmp_path, f"why it ended\n{table}"), "it ended")
    assert error.details == "why it ended"


def test_explanation_of_a_taken_port(tmp_path: Path) -> None:
    """A port that somebody took between our check and Triton's start."""
    error = explain_failure(_log(tmp_path, PORT_TAKEN), "tritonserver exited during startup")
    assert (
        error.problem == "port of 127.0.0.1:8000 was taken by another process while Triton started"
    )


def test_explanation_without_a_log(tmp_path: Path) -> None:
    """Also then there is something to say."""
    error = explain_failure(tmp_path / "none", "it ended")
    assert (error.problem, error.details) == ("it ended", "(empty log)")
