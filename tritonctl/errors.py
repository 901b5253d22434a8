# SPDX-License-Identifier: Apache-2.0
"""Every error a user can meet, with its exit code; and what a misspelt name was meant to be.

    TritonctlError                     base class, never raised itself
    ├── UnexpectedError            1   a bug of tritonctl; its log file is named
    ├── UsageError                 2   the command line asks for something impossible
    │   └── RequestRejectedError   2   the server refused this one request as invalid
    │       └── ItemsRejectedError 2   some of the items that were asked about
    ├── ConfigurationError         3   tritonctl.yaml or another input file is wrong
    ├── HostError                  4   this machine lacks something: a tool, disk space, a free port
    │   └── CommandFailedError     4   a program we ran ended with a non-zero status
    ├── BuildFailedError           5   a builder refused or failed
    ├── RepositoryError            6   the model repository cannot be rendered or is invalid
    ├── ServerError                7   Triton did not start, is not ready or went away
    │   ├── ServerBusyError        7   too many requests wait, or this one waited too long
    │   ├── StepGoneError          7   a composing model's process has died, or is stopping
    │   └── SettingsRefusedError   7   Triton does not load a model with these settings
    ├── SloMissedError             8   a load test broke the SLO, or could not measure it
    │   └── RolledBackError        8   a release was worse than the one before, and is taken back
    └── InterruptionError        130   Ctrl-C, SIGTERM or a closed terminal ended the command

0 is success.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

EXIT_INTERRUPTED = 130
_MOST_COMPARED, _END = 500, 3
_LISTED = 10  # items of many that failed


class TritonctlError(Exception):
    """A failure, and what to do about it.

    `problem` says what failed and on which thing, `remedy` holds the next thing to do (best: a
    command to type), `details` is optional longer evidence such as the tail of a log. `outcome` is
    what a command found before it failed, such as the figures of a load test that missed its SLO.
    """

    exit_code = 1

    def __init__(self, problem: str, *, remedy: str, details: str | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy
        self.details = details
        self.outcome: Mapping[str, object] = {}

    def as_record(self) -> dict[str, object]:
        """The error as plain data, for `--json`, together with the outcome."""
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
    """The command line asks for something that cannot be done."""

    exit_code = 2


class RequestRejectedError(UsageError):
    """Triton answered this request with an error; the server itself is fine.

    is_argument: a model says so itself (gRPC's INVALID_ARGUMENT), so the message is for the client.
    """

    is_argument = False


class ItemsRejectedError(RequestRejectedError):
    """Some of many items have no answer.

    `errors`: why, by the item's index. `results`: in the items' order, None for those.
    """

    def __init__(self, errors: Mapping[int, TritonctlError], results: Sequence[object]) -> None:
        index, first = next(iter(errors.items()))
        others = ", ".join(map(str, list(errors)[1 : 1 + _LISTED]))
        more = "" if len(errors) <= 1 + _LISTED else " and others"
        super().__init__(
            f"item {index} of {len(results)}: {first.problem}"
            + (f"; {len(errors) - 1} more: {others}{more}" if others else ""),
            remedy=first.remedy,
        )
        self.errors = errors
        self.results = results


class ConfigurationError(TritonctlError):
    """`tritonctl.yaml`, an ensemble or a manifest says something impossible."""

    exit_code = 3


class HostError(TritonctlError):
    """The machine lacks what is needed: a program, a library, space, a permission."""

    exit_code = 4


class CommandFailedError(HostError):
    """A program ended with a non-zero status; `details` holds the end of what it printed."""

    def __init__(self, problem: str, *, remedy: str, details: str, returncode: int) -> None:
        super().__init__(problem, remedy=remedy, details=details)
        self.returncode = returncode


class BuildFailedError(TritonctlError):
    """A builder refused its request, failed, or broke its contract."""

    exit_code = 5


class RepositoryError(TritonctlError):
    """The model repository cannot be rendered, or what is in it is invalid."""

    exit_code = 6


class ServerError(TritonctlError):
    """Triton did not start, is not ready, or cannot be reached."""

    exit_code = 7


class StepGoneError(ServerError):
    """The process of a model, or of an ensemble's step, has died or is stopping with its server.

    The server itself still answers; another server may continue the request.
    """


class ServerBusyError(ServerError):
    """UNAVAILABLE: the queue in front of the engine is full, or the request's time in it is up."""


class SettingsRefusedError(ServerError):
    """Triton does not load a model with these settings; what was loaded before still is."""


class SloMissedError(TritonctlError):
    """A load test missed the SLO, or was no valid measurement."""

    exit_code = 8


class RolledBackError(SloMissedError):
    """A rollout has ended with all users where they were."""


class InterruptionError(TritonctlError):
    """The user ended the command by Ctrl-C, SIGTERM or by closing the terminal."""

    exit_code = EXIT_INTERRUPTED


def suggest(word: str, known: Iterable[str], *, likeness: float = 0.6) -> str | None:
    """The known name that `word` was probably meant to be; None where none is like it.

    likeness: from 0 to 1. More than the default is for those to whom the likeness itself is the
    evidence that the word is misspelt.
    """
    import difflib

    names = list(known)
    if len(names) > _MOST_COMPARED:  # comparing takes time, and there may be as many words as names
        names = [one for one in names if _may_be_like(word, one)][:_MOST_COMPARED]
    return next(iter(difflib.get_close_matches(word, names, n=1, cutoff=likeness)), None)


def _may_be_like(word: str, name: str) -> bool:
    ends = word[:_END] == name[:_END] or word[-_END:] == name[-_END:]
    return ends and abs(len(word) - len(name)) < _END


def choices(word: str, known: Iterable[str], label: str) -> str:
    """A remedy for an unknown word: the nearest name, then `label` and all of them."""
    names = list(known)
    nearest = suggest(word, names)
    listing = f"{label} {', '.join(names) or 'none'}"
    return f"did you mean `{nearest}`? {listing}" if nearest else listing
