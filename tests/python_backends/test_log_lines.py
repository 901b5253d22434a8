# SPDX-License-Identifier: Apache-2.0
"""What a model's process prints names the model; `tritonctl logs MODEL` finds it."""

import os
import re
import subprocess
import sys
from pathlib import Path

from textlib.triton import log_lines

from tritonctl.runtimes.server_log import ModelLineFilter

TEXTLIB = Path(log_lines.__file__).parents[2]
PROGRAM = """
import logging, threading, warnings
from textlib.triton.log_lines import tag_log_lines
tag_log_lines("speller_engine")
tag_log_lines("again")
logging.getLogger("textlib.scheduling.acknowledgements").warning("stream %d: no receipt \\u5b57", 7)
logging.getLogger("x").info("not shown")
warnings.warn("old")
def broken(): raise ValueError("in a thread")
def ended(): raise SystemExit
for target in (broken, ended):
    one = threading.Thread(target=target, name="sender")
    one.start()
    one.join()
raise RuntimeError("at the end")
"""
OTHER = 'I1125 17:03:36.598845 30459 http_server.cc:362] "Started"\n'


def said(program: str) -> str:
    """The standard error of a process, in the locale of Triton's stubs."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(TEXTLIB), "LC_ALL": "C", "PYTHONUTF8": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    return done.stderr


def test_every_line_is_found() -> None:
    """Logged, warned of, raised in a thread or at the end: with the traceback, and once each."""
    text = said(PROGRAM)
    heads = [line for line in text.splitlines() if "speller_engine]" in line]
    assert [re.sub(r"^[WEC]\d{4} \d\d:\d\d:\d\d\.\d{3} \d+ ", "", head) for head in heads] == [
        "speller_engine] stream 7: no receipt \\u5b57",
        "speller_engine] <string>:8: UserWarning: old",
        "speller_engine] the thread sender has ended",
        "speller_engine] uncaught",
    ]
    assert "again" not in text
    lines = [*OTHER.splitlines(), *text.splitlines(), *OTHER.splitlines()]
    chosen = ModelLineFilter(["speller", "speller_engine"])
    assert [line for line in lines if chosen.matches(line)] == text.splitlines()
    assert "ValueError: in a thread" in text
    assert "RuntimeError: at the end" in text


def test_logging_that_is_set_up_stays() -> None:
    """A step of one's own may have said how."""
    setup = "import logging\nlogging.basicConfig(format='mine: %(message)s')\n"
    text = said(setup + PROGRAM)
    assert "mine: stream 7" in text
    assert "speller_engine" not in text
