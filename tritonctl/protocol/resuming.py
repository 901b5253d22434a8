# SPDX-License-Identifier: Apache-2.0
"""An answer that outlives its server: when a stream breaks, another endpoint continues it.

The ids received so far go to the next endpoint as `resume_ids`; its responses complete the text of
an unbroken stream. Both clients share this; it does not touch the network.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Protocol

from tritonctl.errors import (
    RequestRejectedError,
    ServerBusyError,
    ServerError,
    StepGoneError,
    TritonctlError,
    UsageError,
)
from tritonctl.protocol.generation import (
    Chunk,
    Prompt,
    Queueing,
    SamplingParameters,
    generation_request,
    read_chunk,
)

# Between rounds in which all endpoints failed; doubled each time, up to the longest.
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0
# With these pauses half a minute: a crashed server is started again meanwhile.
_RESUMES_ON_ITSELF = 30


class Itinerary(Protocol):
    """Where an answer is asked for, one attempt after another."""

    @property
    def endpoints(self) -> int:
        """How many there are: once all have failed, an answer waits for them."""

    def next(self, failed: Sequence[str]) -> str:
        """The endpoint of an attempt. `failed`: those of the attempts before it."""

    def most_resumes(self, tokens: int) -> int:
        """How often an answer of which so many tokens have come may go on."""

    @property
    def patience(self) -> float | None:
        """Seconds of silence after which `leaves` is asked; None: a server may be silent."""

    def leaves(self, tokens: int, seconds: float) -> bool:
        """Whether an answer of so many tokens leaves a server that is silent for so long."""


@dataclass(frozen=True)
class Route:
    """The endpoints in the order in which they are tried, round and round, and how often to go on.

    With a single endpoint a broken stream is an error at once.
    """

    urls: tuple[str, ...]
    max_resumes: int

    @classmethod
    def of(cls, url: str, resume_on: str | Sequence[str], max_resumes: int | None) -> Route:
        """`max_resumes` is the number of further endpoints unless given. Raises UsageError.

        An endpoint that is its own only further one gets half a minute to come back.
        """
        others = (resume_on,) if isinstance(resume_on, str) else tuple(resume_on)
        if max_resumes is not None and (max_resumes < 0 or not others):
            raise UsageError(
                f"max_resumes is {max_resumes}, with {len(others)} endpoints to resume on",
                remedy="name one with resume_on (--resume-on HOST:PORT); max_resumes is 0 or more",
            )
        if max_resumes is None:
            max_resumes = _RESUMES_ON_ITSELF if others == (url,) else len(others)
        return cls((url, *others), max_resumes)

    @property
    def endpoints(self) -> int:
        """As Itinerary."""
        return len(set(self.urls))

    def next(self, failed: Sequence[str]) -> str:
        """As Itinerary."""
        return self.urls[len(failed) % len(self.urls)]

    def most_resumes(self, tokens: int) -> int:  # noqa: ARG002 - the same for all
        """As Itinerary."""
        return self.max_resumes

    @property
    def patience(self) -> float | None:
        """As Itinerary: whoever calls has a timeout for the whole answer."""
        return None

    def leaves(self, tokens: int, seconds: float) -> bool:  # noqa: ARG002 - never asked
        """As Itinerary."""
        return False


class ResumableAnswer:
    """One answer from one endpoint after another: the endpoint to ask, and what it has sent.

    A client waits `pause`, sends `request()` to `url`, passes each response to `read` until
    `complete`, and calls `broken` when the connection ends before that. `ended`: the endpoint has
    sent its last response, or an error, and is about to end the call.
    """

    def __init__(
        self,
        route: Itinerary,
        model: str,
        prompt: Prompt,
        sampling: SamplingParameters,
        queueing: Queueing,
        timeout: float | None,
    ) -> None:
        self.complete = self.ended = False
        self._route = route
        self._failed: list[str] = []
        self.url = route.next(self._failed)  # the endpoint to ask now
        self._asked = (model, prompt, sampling)
        self._queueing = queueing
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._ids: list[int] = []
        self._texts: list[str] = []
        self._last: Chunk | None = None
        self._log_prob = 0.0  # of what came before the latest break
        self._failures: list[TritonctlError] = []
        self._fruitless = 0  # attempts since the last one that brought an id
        self._ids_before = 0  # ids at the latest break

    @property
    def pause(self) -> float:
        """Seconds to wait before the next attempt: 0 unless all endpoints have just failed."""
        rounds, rest = divmod(self._fruitless, self._route.endpoints)
        if rest or not rounds:
            return 0.0
        pause = min(_FIRST_PAUSE_SECONDS * 2.0 ** min(rounds - 1, 8), _LONGEST_PAUSE_SECONDS)
        return pause if self.seconds_left is None else min(pause, self.seconds_left)

    @property
    def seconds_left(self) -> float | None:
        """What is left of the timeout for the whole answer."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    @property
    def patience(self) -> float | None:
        """Seconds that an endpoint may be silent, before `leaves` is asked."""
        return self._route.patience

    def leaves(self, seconds: float) -> bool:
        """Whether an endpoint that is silent for so long is left."""
        return self._route.leaves(len(self._ids), seconds)

    def request(self) -> Any:
        """The ModelInferRequest for what is missing."""
        self.ended = False
        text = "".join(self._texts) if self._ids else None
        return generation_request(
            *self._asked, queueing=self._queueing, resume_ids=self._ids, resume_text=text
        )

    def read(self, response: Any) -> Chunk | None:
        """The chunk in a ModelStreamInferResponse, None for the empty final one."""
        self.ended = bool(response.error_message)
        try:
            chunk, self.complete = read_chunk(response)
        except StepGoneError:
            self.ended = False  # nobody knows when the server will end the call
            raise
        except (RequestRejectedError, ServerBusyError) as error:
            if not self._ids:  # no server has accepted this request yet
                raise
            self._give_up(error)
        self.ended = self.complete
        return None if chunk is None else self._joined(chunk)

    def broken(self, error: TritonctlError, *, resumable: bool) -> None:
        """The stream at `url` ended with `error`: go on at the next endpoint, or raise."""
        if self._last is not None and self._last.finish_reason:
            self.complete = True  # only the empty final response is missing
            return
        if not resumable or len(self._failures) >= self._most_resumes:
            self._give_up(error)
        self._failures.append(error)
        self._failed.append(self.url)
        self._fruitless = self._fruitless + 1 if len(self._ids) == self._ids_before else 0
        self._ids_before = len(self._ids)
        self._log_prob = (self._last and self._last.cum_log_prob) or 0.0
        self.url = self._route.next(self._failed)

    @property
    def _most_resumes(self) -> int:
        return self._route.most_resumes(len(self._ids))

    def _joined(self, chunk: Chunk) -> Chunk:
        """The chunk as part of the whole answer."""
        if self._ids and self._last and chunk.num_input_tokens != self._last.num_input_tokens:
            other_model = ServerError(
                f"{self.url} serves another model: the prompt has {chunk.num_input_tokens} tokens "
                f"at this endpoint and {self._last.num_input_tokens} at the one before",
                remedy="resume only on endpoints that serve the same model",
            )
            self._give_up(other_model)
        self._ids.extend(chunk.token_ids)
        self._texts.append(chunk.text)
        if self._failures:  # else it is so already, and every token would pay for a copy
            log_prob = chunk.cum_log_prob
            chunk = replace(
                chunk,
                resumes=len(self._failures),
                cum_log_prob=None if log_prob is None else self._log_prob + log_prob,
            )
        self._last = chunk
        return chunk

    def _give_up(self, error: TritonctlError) -> NoReturn:
        if not self._failures:
            raise error
        first, *others = [*self._failures, error]
        counts = Counter(failure.problem for failure in (first, *others))  # in order of appearance
        problems = (text + (f" ({n} times)" if n > 1 else "") for text, n in counts.items())
        raise ServerError(
            f"{'; then '.join(problems)}. The answer had {len(self._ids)} tokens and was continued "
            f"{len(self._failures)} times (max_resumes {self._most_resumes})",
            remedy=first.remedy,
        ) from error
