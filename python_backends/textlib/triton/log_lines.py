# SPDX-License-Identifier: Apache-2.0
"""Tag the lines that a model's process writes to the server's log with the model's name.

All stubs write to Triton's standard error. Tagged lines look like Triton's own:
`W1125 17:03:36.598 30459 speller_engine] stream 7: the server took no response`.
"""

import logging
import sys
import threading
from types import TracebackType

_FORMAT = "%(levelname).1s%(asctime)s.%(msecs)03d %(process)d {model}] %(message)s"
_LOG = logging.getLogger(__name__)


def tag_log_lines(model: str) -> None:
    """Tag all log records, warnings and uncaught exceptions with `model` from now on.

    Does nothing if logging is already configured, as a custom step may do.
    """
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(_FORMAT.format(model=model), "%m%d %H:%M:%S"))
    root.addHandler(handler)
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_thread_error


def _log_uncaught(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    _LOG.critical("uncaught", exc_info=(kind, error, trace))


def _log_thread_error(raised: threading.ExceptHookArgs) -> None:
    if raised.exc_value is None or issubclass(raised.exc_type, SystemExit):
        return
    name = raised.thread.name if raised.thread else "?"
    info = (raised.exc_type, raised.exc_value, raised.exc_traceback)
    _LOG.critical("the thread %s has ended", name, exc_info=info)
