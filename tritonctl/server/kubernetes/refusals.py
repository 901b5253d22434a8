# SPDX-License-Identifier: Apache-2.0
"""Why kubectl, or the cluster behind it, did not do what it was asked: by what it printed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

from tritonctl.errors import ConfigurationError, HostError, TritonctlError

_LOGGING = re.compile(r"^[EWI]\d{4} \d\d:\d\d:\d\d")  # kubectl's own log, before what it says
_MOST = 400  # letters of a message that are shown


class Reason(StrEnum):
    """What kind of failure it is."""

    NO_KUBECTL = "no kubectl"
    NO_CONTEXT = "no such context"
    UNREACHABLE = "no cluster"
    TIMEOUT = "timeout"
    UNAUTHORIZED = "not logged in"
    FORBIDDEN = "no rights"
    NO_NAMESPACE = "no such namespace"
    NO_KIND = "no such kind of object"
    NOT_FOUND = "no such object"
    QUOTA = "quota"
    POLICY = "policy"
    CONFLICT = "conflict"
    INVALID = "invalid"
    OTHER = "other"


class ClusterError(HostError):
    """The cluster is not reached, or does not have or allow what is needed."""

    def __init__(
        self, problem: str, *, remedy: str, reason: Reason, details: str | None = None
    ) -> None:
        super().__init__(problem, remedy=remedy, details=details)
        self.reason = reason


class ManifestRefusedError(ConfigurationError):
    """The cluster refuses an object as it is written, or somebody changed it meanwhile."""

    def __init__(
        self, problem: str, *, remedy: str, reason: Reason, details: str | None = None
    ) -> None:
        super().__init__(problem, remedy=remedy, details=details)
        self.reason = reason


_CONTEXTS = "`kubectl config get-contexts` lists the contexts; name one: --context NAME"
_ENDPOINT = (
    "`kubectl{flags} cluster-info` asks it again; is the cluster up, and this machine in its "
    "network (a VPN, a proxy)?"
)
QUOTA_REMEDY = (
    "`kubectl{flags} describe resourcequota` shows it; ask for more, or lower cpu, memory and "
    "replicas in your file of values"
)
# The first that matches: pattern, reason, what failed, what to do. {message}: what kubectl said;
# {flags}: context and namespace, as they were given.
_KNOWN: Sequence[tuple[str, Reason, str, str]] = (
    (
        r"context was not found|context \S+ does not exist|current-context is not set",
        Reason.NO_CONTEXT,
        "kubectl has no such context: {message}",
        _CONTEXTS,
    ),
    (
        r"error loading config file|invalid configuration",
        Reason.NO_CONTEXT,
        "kubectl cannot read its configuration: {message}",
        "`kubectl config view` shows it; KUBECONFIG names another file",
    ),
    (
        r"server localhost:8080 was refused|no configuration has been provided",
        Reason.UNREACHABLE,
        "kubectl is configured for no cluster",
        "set KUBECONFIG to the file that the cluster's owner gave you; " + _CONTEXTS,
    ),
    (
        r"x509: ",
        Reason.UNREACHABLE,
        "the cluster's certificate is not the expected one: {message}",
        "fetch the cluster's kubeconfig again; then `kubectl{flags} cluster-info`",
    ),
    (
        r"getting credentials|\(Unauthorized\)|must be logged in|provide credentials",
        Reason.UNAUTHORIZED,
        "the cluster does not accept your credentials: {message}",
        "log in again, as the cluster's owner says; then `kubectl{flags} auth can-i --list`",
    ),
    (
        r"i/o timeout|timed out|deadline exceeded|handshake timeout|Client\.Timeout|\(Timeout\)",
        Reason.TIMEOUT,
        "the cluster does not answer in time: {message}",
        _ENDPOINT,
    ),
    (
        (
            r"Unable to connect|was refused|connection refused|no such host|unreachable"
            r"|no route to host|ServiceUnavailable"
        ),
        Reason.UNREACHABLE,
        "the cluster is not reached: {message}",
        _ENDPOINT,
    ),
    (
        r"exceeded quota|is forbidden: failed quota",
        Reason.QUOTA,
        "the namespace's quota is too small: {message}",
        QUOTA_REMEDY,
    ),
    (
        r"violates PodSecurity|admission webhook .* denied|ValidatingAdmissionPolicy",
        Reason.POLICY,
        "a policy of the cluster forbids it: {message}",
        (
            "`kubectl{flags} get namespace --show-labels` names the level of Pod Security; change "
            "what the message names in your file of values"
        ),
    ),
    (
        r"\(Forbidden\)|is forbidden",
        Reason.FORBIDDEN,
        "you are not allowed to do that: {message}",
        (
            "`kubectl{flags} auth can-i --list` shows what you are; ask the cluster's owner for a "
            "Role"
        ),
    ),
    (
        r'namespaces? "[^"]+" not found',
        Reason.NO_NAMESPACE,
        "the namespace does not exist: {message}",
        "`kubectl get namespaces` lists them; name one: --namespace NAME",
    ),
    (
        r"doesn't have a resource type|no matches for kind|could not find the requested resource",
        Reason.NO_KIND,
        "the cluster has no such kind of object: {message}",
        (
            "install what brings it, or leave that part out in your file of values; "
            "`tritonctl doctor --on kubernetes` lists what the cluster has"
        ),
    ),
    (
        r"\(NotFound\)|not found",
        Reason.NOT_FOUND,
        "the cluster has no such object: {message}",
        "`tritonctl status --on kubernetes` shows what is there; is the namespace the right one?",
    ),
    (
        r"\(Conflict\)|\(AlreadyExists\)|the object has been modified|conflict with",
        Reason.CONFLICT,
        "somebody else has changed it: {message}",
        "look at it (`kubectl{flags} get ... -o yaml`), then try again",
    ),
    (
        r"\(Invalid\)|\(BadRequest\)|is invalid|error validating|cannot unmarshal|strict decoding",
        Reason.INVALID,
        "the cluster refuses the object: {message}",
        "correct what the message names in your file of values, or in the chart",
    ),
)
_MANIFEST = {Reason.CONFLICT, Reason.INVALID}


def refusal(text: str, *, flags: str = "") -> TritonctlError:
    """The error for what kubectl printed before it ended with a status other than 0.

    flags: as they are to be repeated in commands, with a space before them.
    """
    said = _said(text)
    message = _shown(said[-1]) if said else ""
    more = "\n".join(said) if len(said) > 1 else None
    for pattern, reason, problem, remedy in _KNOWN:
        if re.search(pattern, text, re.IGNORECASE):
            kind = ManifestRefusedError if reason in _MANIFEST else ClusterError
            return kind(
                problem.replace("{message}", message),
                remedy=remedy.replace("{flags}", flags),
                reason=reason,
                details=more,
            )
    return ClusterError(
        f"kubectl failed: {message or 'it said nothing'}",
        remedy=f"`kubectl{flags} cluster-info` shows whether the cluster answers",
        reason=Reason.OTHER,
        details=more,
    )


def _said(text: str) -> list[str]:
    """What kubectl says, without its own log."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return [line for line in lines if not _LOGGING.match(line)] or lines


def _shown(line: str) -> str:
    return line.removeprefix("error: ").removeprefix("Error: ")[:_MOST]
