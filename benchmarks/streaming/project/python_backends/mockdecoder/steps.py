# SPDX-License-Identifier: Apache-2.0
"""The mock decoder that all variants share: a step every 10 ms, one id per sequence and step."""

import time

STEP_SECONDS = 0.010


class Pace:
    """Waits for the next tick, as a GPU step would: without holding the interpreter."""

    def __init__(self) -> None:
        self._next = time.monotonic()

    def wait(self) -> None:
        """Sleep until the next step is due; a late one starts at once."""
        now = time.monotonic()
        self._next = max(self._next + STEP_SECONDS, now)
        time.sleep(self._next - now)


def token_id(first_prompt_id: int, position: int, vocab_size: int) -> int:
    """The id at a position of an answer: looks random, depends on the prompt alone."""
    return (first_prompt_id * 7919 + position * 104_729) % vocab_size
