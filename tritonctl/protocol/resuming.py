# SPDX-License-Identifier: Apache-2.0
"""Resume a broken stream on another endpoint.

The next endpoint receives the token ids so far as `resume_ids`; its responses complete the text of
an unbroken stream. Both clients use this module; it does no I/O.
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
    UNCOUNTED,
    Chunk,
    Prompt,
    Queueing,
    SamplingParameters,
    generation_request,
    read_chunk,
)
from tritonctl.protocol.text_signature import TextSignature

# Pauses between rounds in which all endpoints failed; doubled each time up to the maximum.
_FIRST_PAUSE_SECONDS = 0.05
_MAX_PAUSE_SECONDS = 1.0
# With these pauses half a minute, in which a crashed server restarts.
_RESUMES_ON_ITSELF = 30


class Itinerary(Protocol):
    """Chooses the endpoint of each attempt of an answer."""

    @property
    def endpoints(self) -> int:
        """Number of endpoints: after all have failed, an answer pauses."""

    def next(self, failed: Sequence[str]) -> str:
        """Return the endpoint of an attempt. `failed`: endpoints of the previous attempts."""

    def resume_limit(self, tokens: int) -> int:
        """Return how often an answer with `tokens` tokens so far may be resumed."""

    @property
    def silence_limit(self) -> float | None:
        """Seconds of silence before `should_leave` is called; None: no limit."""

    def should_leave(self, tokens: int, seconds: float) -> bool:
        """Whether an answer with `tokens` tokens leaves a server silent for `seconds`."""


@dataclass(frozen=True)
class Route:
    """Endpoints in the order of attempts, in a cycle.

    With a single endpoint a broken stream is an error at once.
    """

    urls: tuple[str, ...]
    max_resumes: int

    @classmethod
    def of(cls, url: str, resume_on: str | Sequence[str], max_resumes: int | None) -> Route:
        """`max_resumes` defaults to the number of further endpoints. Raises UsageError.

        If `resume_on` is only `url`, the default allows half a minute for its restart.
        """
        further_urls = (resume_on,) if isinstance(resume_on, str) else tuple(resume_on)
        if max_resumes is not None and (max_resumes < 0 or not further_urls):
            raise UsageError(
                f"max_resumes is {max_resumes}, with {len(further_urls)} endpoints to resume on",
                remedy="name one with resume_on (--resume-on HOST:PORT); max_resumes is 0 or more",
            )
        if max_resumes is None:
            max_resumes = _RESUMES_ON_ITSELF if further_urls == (url,) else len(further_urls)
        return cls((url, *further_urls), max_resumes)

    @property
    def endpoints(self) -> int:
        """As Itinerary."""
        return len(set(self.urls))

    def next(self, failed: Sequence[str]) -> str:
        """As Itinerary."""
        return self.urls[len(failed) % len(self.urls)]

    def resume_limit(self, tokens: int) -> int:  # noqa: ARG002 - Itinerary's signature
        """As Itinerary."""
        return self.max_resumes

    @property
    def silence_limit(self) -> float | None:
        """As Itinerary: no limit, because callers set a timeout for the whole answer."""
        return None

    def should_leave(self, tokens: int, seconds: float) -> bool:  # noqa: ARG002 - never called
        """As Itinerary."""
        return False


class ResumableAnswer:
    """One answer, received from one endpoint after another.

    A client waits for `pause`, sends `request()` to `url`, passes each response to `read` until
    `complete`, and calls `on_break` if the connection ends before. `is_ending`: the endpoint has
    sent its last response or an error, and is about to end the call.
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
        self.complete = self.is_ending = False
        self._route = route
        self._failed: list[str] = []
        self.url = route.next(self._failed)  # the endpoint of the current attempt
        self.model = model
        self.signature: TextSignature | None = None  # of a model of another maker
        self._request_arguments = (model, prompt, sampling)
        self._queueing = queueing
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._ids: list[int] = []
        self._texts: list[str] = []
        self._last: Chunk | None = None
        self._log_prob = 0.0  # cumulative, at the latest break
        self._failures: list[TritonctlError] = []
        self._fruitless = 0  # consecutive attempts without a new id
        self._ids_before = 0  # number of ids at the latest break

    @property
    def pause(self) -> float:
        """Seconds to wait before the next attempt; 0 unless all endpoints have just failed."""
        rounds, position = divmod(self._fruitless, self._route.endpoints)
        if position or not rounds:
            return 0.0
        pause = min(_FIRST_PAUSE_SECONDS * 2.0 ** min(rounds - 1, 8), _MAX_PAUSE_SECONDS)
        return pause if self.seconds_left is None else min(pause, self.seconds_left)

    @property
    def seconds_left(self) -> float | None:
        """Remaining seconds of the timeout for the whole answer; None: no timeout."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    @property
    def silence_limit(self) -> float | None:
        """Seconds of silence before `should_leave` is called; None: no limit."""
        return self._route.silence_limit

    def should_leave(self, seconds: float) -> bool:
        """Whether to leave an endpoint that is silent for `seconds`."""
        return self._route.should_leave(len(self._ids), seconds)

    def request(self) -> Any:
        """Build the ModelInferRequest for the missing part."""
        self.is_ending = False
        text = "".join(self._texts) if self._ids else None
        request = generation_request(
            *self._request_arguments,
            queueing=self._queueing,
            resume_ids=self._ids,
            resume_text=text,
        )
        return request if self.signature is None else self.signature.adapt(request)

    def read(self, response: Any) -> Chunk | None:
        """Return the chunk of a ModelStreamInferResponse; None for the empty final response."""
        self.is_ending = bool(response.error_message)
        try:
            chunk, self.complete = read_chunk(response, self.model)
        except StepGoneError:
            self.is_ending = False  # it is unknown when the server will end the call
            raise
        except (RequestRejectedError, ServerBusyError) as error:
            if not self._ids:  # no server has accepted this request yet
                raise
            self._give_up(error)
        self.is_ending = self.complete
        return None if chunk is None else self._merge(chunk)

    def on_break(self, error: TritonctlError, *, resumable: bool) -> None:
        """Handle a stream that ended with `error`: choose the next endpoint, or raise."""
        if self._last is not None and self._last.finish_reason:
            self.complete = True  # only the empty final response is missing
            return
        has_lost_ids = self.signature is not None and bool(self._texts)  # nothing to resume with
        if not resumable or has_lost_ids or len(self._failures) >= self._resume_limit:
            self._give_up(error)
        self._failures.append(error)
        self._failed.append(self.url)
        self._fruitless = self._fruitless + 1 if len(self._ids) == self._ids_before else 0
        self._ids_before = len(self._ids)
        self._log_prob = (self._last and self._last.cum_log_prob) or 0.0
        self.url = self._route.next(self._failed)

    @property
    def _resume_limit(self) -> int:
        return self._route.resume_limit(len(self._ids))

    def _merge(self, chunk: Chunk) -> Chunk:
        """Return the chunk with counts of the whole answer."""
        if self._ids and self._last and chunk.num_input_tokens != self._last.num_input_tokens:
            model_error = ServerError(
                f"{self.url} serves another model: the prompt has {chunk.num_input_tokens} tokens "
                f"at this endpoint and {self._last.num_input_tokens} at the previous one",
                remedy="resume only on endpoints that serve the same model",
            )
            self._give_up(model_error)
        if chunk.num_output_tokens == UNCOUNTED:
            previous = self._last.num_output_tokens if self._last else 0
            chunk = replace(chunk, num_output_tokens=previous + bool(chunk.text))
        self._ids.extend(chunk.token_ids)
        self._texts.append(chunk.text)
        if self._failures:  # otherwise nothing changes, and a copy would cost time per token
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
        first, *later_failures = [*self._failures, error]
        counts = Counter(
            failure.problem for failure in (first, *later_failures)
        )  # in order of appearance
        problems = (text + (f" ({n} times)" if n > 1 else "") for text, n in counts.items())
        raise ServerError(
            f"{'; then '.join(problems)}. The answer had {len(self._ids)} tokens and was continued "
            f"{len(self._failures)} times (max_resumes {self._resume_limit})",
            remedy=first.remedy,
        ) from error
