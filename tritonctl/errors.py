# SPDX-License-Identifier: Apache-2.0
"""Every user-visible error with its exit code, and suggestions for misspelt names.

    TritonctlError                     base class, never raised itself
    ├── UnexpectedError            1   a bug of tritonctl; its log file is named
    ├── UsageError                 2   the command line asks for something impossible
    │   └── RequestRejectedError   2   the server refused this one request as invalid
    │       ├── ItemsRejectedError 2   some items of a request with several items
    │       └── ModelFailedError   7   the model failed on it: an exception, an error of its own
    ├── ConfigurationError         3   tritonctl.yaml or another input file is wrong
    ├── HostError                  4   this machine lacks something: a tool, disk space, a free port
    │   └── CommandFailedError     4   a program we ran exited with a non-zero status
    ├── BuildFailedError           5   a builder refused or failed
    ├── RepositoryError            6   the model repository cannot be rendered or is invalid
    ├── ServerError                7   Triton did not start, is not ready or went away
    │   ├── ServerBusyError        7   too many requests wait, or this one waited too long
    │   ├── StepGoneError          7   a composing model's process has died, or is stopping
    │   └── SettingsRefusedError   7   Triton cannot load a model with these settings
    ├── SloMissedError             8   a load test broke the SLO
    │   └── RolledBackError        8   a release was worse than the previous one and is rolled back
    ├── InvalidMeasurementError    9   a load test or a session gave no valid measurement
    └── InterruptionError        130   Ctrl-C, SIGTERM or a closed terminal ended the command

0 is success.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

EXIT_INTERRUPTED = 130
_MAX_COMPARED, _AFFIX = 500, 3
_MAX_LISTED = 10  # items of many that failed


class TritonctlError(Exception):
    """A failure and its remedy.

    `problem` names the failure and its object, `remedy` the next action (ideally a command),
    `details` optional evidence such as the tail of a log. `outcome` are results of the command
    before the failure, such as the figures of a load test that missed its SLO.
    """

    exit_code = 1

    def __init__(self, problem: str, *, remedy: str, details: str | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy
        self.details = details
        self.outcome: Mapping[str, object] = {}

    def as_record(self) -> dict[str, object]:
        """Return the error and the outcome as plain data for `--json`."""
        return {
            **self.outcome,
            "error": type(self).__name__,
            "exit_code": self.exit_code,
            "problem": self.problem,
            "remedy": self.remedy,
            "details": self.details,
        }


class UnexpectedError(TritonctlError):
    """A bug: an unforeseen exception."""


class UsageError(TritonctlError):
    """The command line requests something impossible."""

    exit_code = 2


class RequestRejectedError(UsageError):
    """Triton answered this request with an error; the server itself works."""

    # The model reports gRPC's INVALID_ARGUMENT, so the message is meant for the client.
    is_argument = False


class ModelFailedError(RequestRejectedError):
    """Triton works and has answered, but the model failed on this request."""

    exit_code = 7


class ItemsRejectedError(RequestRejectedError):
    """Some of several items have no answer.

    `errors` has the errors by item index, `results` the results in item order, None for failed
    items.
    """

    def __init__(self, errors: Mapping[int, TritonctlError], results: Sequence[object]) -> None:
        index, first = next(iter(errors.items()))
        further_items = ", ".join(map(str, list(errors)[1 : 1 + _MAX_LISTED]))
        more = "" if len(errors) <= 1 + _MAX_LISTED else " and others"
        super().__init__(
            f"item {index} of {len(results)}: {first.problem}"
            + (f"; {len(errors) - 1} more: {further_items}{more}" if further_items else ""),
            remedy=first.remedy,
        )
        self.errors = errors
        self.results = results


class ConfigurationError(TritonctlError):
    """`tritonctl.yaml`, an ensemble or a manifest is invalid."""

    exit_code = 3


class HostError(TritonctlError):
    """The machine lacks a program, a library, space or a permission."""

    exit_code = 4


class CommandFailedError(HostError):
    """A program exited with a non-zero status; `details` holds the end of its output."""

    def __init__(self, problem: str, *, remedy: str, details: str, returncode: int) -> None:
        super().__init__(problem, remedy=remedy, details=details)
        self.returncode = returncode


class BuildFailedError(TritonctlError):
    """A builder refused its request, failed, or broke its contract."""

    exit_code = 5


class RepositoryError(TritonctlError):
    """The model repository cannot be rendered, or its content is invalid."""

    exit_code = 6


class ServerError(TritonctlError):
    """Triton did not start, is not ready, or cannot be reached."""

    exit_code = 7


class StepGoneError(ServerError):
    """The process of a model or of an ensemble's step has died or is stopping with its server.

    Or the model itself is no longer loaded. The server still answers; another server may continue
    the request.
    """


class ServerBusyError(ServerError):
    """UNAVAILABLE: the queue in front of the engine is full, or the request timed out in it."""


class SettingsRefusedError(ServerError):
    """Triton cannot load a model with these settings; the previous version stays loaded."""


class SloMissedError(TritonctlError):
    """A valid measurement missed the SLO."""

    exit_code = 8


class RolledBackError(SloMissedError):
    """A rollout has ended with all users on the stable release."""


class InvalidMeasurementError(TritonctlError):
    """There is no valid measurement: whether the SLO is met is unknown."""

    exit_code = 9


class InterruptionError(TritonctlError):
    """The user ended the command by Ctrl-C, SIGTERM or by closing the terminal."""

    exit_code = EXIT_INTERRUPTED


def suggest(word: str, valid_names: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the valid name most similar to `word`; None if none is similar.

    `cutoff` is the minimum similarity, 0 to 1. Use more than the default if the similarity itself
    is the evidence of a misspelling.
    """
    import difflib

    names = list(valid_names)
    if len(names) > _MAX_COMPARED:  # comparisons are slow, and there may be as many words
        names = [name for name in names if _may_resemble(word, name)][:_MAX_COMPARED]
    return next(iter(difflib.get_close_matches(word, names, n=1, cutoff=cutoff)), None)


def _may_resemble(word: str, name: str) -> bool:
    shares_affix = word[:_AFFIX] == name[:_AFFIX] or word[-_AFFIX:] == name[-_AFFIX:]
    return shares_affix and abs(len(word) - len(name)) < _AFFIX


def choices(word: str, valid_names: Iterable[str], label: str) -> str:
    """Return a remedy for an unknown word: the nearest name, then `label` and all names."""
    names = list(valid_names)
    nearest = suggest(word, names)
    listing = f"{label} {', '.join(names) or 'none'}"
    return f"did you mean `{nearest}`? {listing}" if nearest else listing
