# SPDX-License-Identifier: Apache-2.0
"""What people ask of a rollout under way: a file each, moved into `.tritonctl/rollouts/<n>/asked/`.

Empty files: a full disk does not stand in the way of an abort. The controller takes one away once
the journal says what became of it.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from tritonctl.host.files import explained

_FOLDER = "asked"


class Ask(StrEnum):
    """By the file's name."""

    PAUSE = "pause"  # no further step; it is still judged
    RESUME = "resume"
    PROMOTE = "promote"  # all users now, whatever the steps say
    ABORT = "abort"  # all users back; open streams end where they are
    ABORT_AT_ONCE = "abort-at-once"  # and those of the candidate are cut, to go on elsewhere
    CLOSE = "close"  # unload what is kept warm


# Where several wait: who wants users back is heard first.
_ORDER = (
    Ask.ABORT_AT_ONCE,
    Ask.ABORT,
    Ask.PROMOTE,
    Ask.PAUSE,
    Ask.RESUME,
    Ask.CLOSE,
)


def place(folder: Path, ask: Ask) -> None:
    """Ask it of the rollout in `folder`. Raises HostError."""
    with explained(folder):
        (folder / _FOLDER).mkdir(parents=True, exist_ok=True)
        (folder / _FOLDER / ask.value).touch()


def waiting(folder: Path) -> list[Ask]:
    """What was asked and is not answered. Unknown files are nobody's business here."""
    return [ask for ask in _ORDER if (folder / _FOLDER / ask.value).exists()]


def answered(folder: Path, ask: Ask) -> None:
    """It is done, or will not be. Raises HostError."""
    with explained(folder):
        (folder / _FOLDER / ask.value).unlink(missing_ok=True)
