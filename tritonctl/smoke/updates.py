# SPDX-License-Identifier: Apache-2.0
"""Models that an update is loading, replacing or unloading during a smoke test.

`tritonctl reload` loads standby copies, NAME__TAG, and then the new version by its real names:
for seconds a server has models without users, and steps whose ensemble no longer calls them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping

# Triton's state of each model, as `RecordingClient.models`: "" for ready models, else the reason.
ModelStates = Mapping[str, str]

_CHANGING = ("LOADING", "UNLOADING")
_UNLOADING = _CHANGING[1]
_STANDBY_NAME = re.compile(r"(?P<model>.+)__[0-9a-f]{6}")
_POLL_SECONDS = 0.25


def is_standby_copy(name: str, states: ModelStates) -> bool:
    """Whether a model is the standby copy of another one, by its name."""
    match = _STANDBY_NAME.fullmatch(name)
    return match is not None and match["model"] in states


def models_in_update(states: ModelStates) -> list[str]:
    """Return the models that are loading or unloading, and the standby copies.

    Copies that only unload are not returned: a lost request may keep them until Triton exits.
    """
    return [
        name
        for name, reason in states.items()
        if (
            not reason.startswith(_UNLOADING)
            if is_standby_copy(name, states)
            else reason.startswith(_CHANGING)
        )
    ]


def wait_for_update(
    read_states: Callable[[], ModelStates | None],
    seconds: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> ModelStates | None:
    """Return the states once no model is in update, at the latest after `seconds`."""
    deadline = clock() + seconds
    while True:
        states = read_states()
        if not states or not models_in_update(states) or clock() >= deadline:
            return states
        sleep(_POLL_SECONDS)
