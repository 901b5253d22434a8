# SPDX-License-Identifier: Apache-2.0
"""A program for test_guide_trials: a compiler that does what a guide's text says."""

import os
import signal
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from textlib.engine import guide_worker
from textlib.errors import ModelConfigurationError
from textlib.triton.request_tensors import GuideSpec

STATUS = 7
_KEPT: list[bytes] = []


def load(setup: Mapping[str, Any]) -> guide_worker.CompileGuide:
    """As `setup["load"]` says."""
    if setup["load"] == "refused":
        raise ModelConfigurationError("no vocabulary")
    if setup["load"] == "crash":
        os._exit(STATUS)
    return compile_guide


def compile_guide(guide: GuideSpec) -> None:
    """Nothing, or what the text says."""
    if guide.text == "bad":
        raise RuntimeError(
            "[01:02:03] /a/b/_deps/xgrammar-src/cpp/regex.cc:75: It is\n not closed.\n"
        )
    if guide.text == "memory":
        np.empty(2 * guide_worker.MEMORY_BYTES, dtype=np.uint8)
    if guide.text.startswith("keep"):
        _KEPT.append(b"x" * (int(guide.text.split()[1]) << 20))
    if guide.text == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if guide.text == "sleep":
        time.sleep(1000)
    while guide.text == "loop":
        pass


guide_worker.CPU_SECONDS = 0.2
guide_worker.main(load)
