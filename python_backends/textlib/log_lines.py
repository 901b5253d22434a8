# SPDX-License-Identifier: Apache-2.0
"""Lines of a model's process in the server's log say which model they are from.

A stub writes to Triton's standard error, where nothing tells whose line it is. These begin like
Triton's own: `W1125 17:03:36.598 30459 speller_engine] stream 7: the server took no response`.
"""

import logging
import sys
import threading
from types import TracebackType

_FORM = "%(levelname).1s%(asctime)s.%(msecs)03d %(process)d {model}] %(message)s"
_LOG = logging.getLogger(__name__)


def name_lines(model: str) -> None:
    """Name `model` in what is logged, warned of, or raised and caught by nobody, from now on.

    Where logging is set up already, as a step of one's own may do, that stays.
    """
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(_FORM.format(model=model), "%m%d %H:%M:%S"))
    root.addHandler(handler)
    logging.captureWarnings(True)
    sys.excepthook = _uncaught
    threading.excepthook = _of_thread


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    _LOG.critical("uncaught", exc_info=(kind, error, trace))


def _of_thread(raised: threading.ExceptHookArgs) -> None:
    if raised.exc_value is None or issubclass(raised.exc_type, SystemExit):
        return
    name = raised.thread.name if raised.thread else "?"
    info = (raised.exc_type, raised.exc_value, raised.exc_traceback)
    _LOG.critical("the thread %s has ended", name, exc_info=info)
