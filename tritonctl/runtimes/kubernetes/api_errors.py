# SPDX-License-Identifier: Apache-2.0
"""Translate the output of a failed kubectl into an error with a reason and a remedy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

from tritonctl.errors import ConfigurationError, HostError, TritonctlError

_LOG_LINE = re.compile(r"^[EWI]\d{4} \d\d:\d\d:\d\d")  # kubectl's log lines, before its message
_MAX_MESSAGE_LENGTH = 400  # displayed characters


class ClusterErrorReason(StrEnum):
    """The kind of a cluster error."""

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
    """The cluster is unreachable, or lacks or forbids something."""

    def __init__(
        self, problem: str, *, remedy: str, reason: ClusterErrorReason, details: str | None = None
    ) -> None:
        super().__init__(problem, remedy=remedy, details=details)
        self.reason = reason


class ManifestRefusedError(ConfigurationError):
    """The cluster rejects an object as invalid, or it was modified concurrently."""

    def __init__(
        self, problem: str, *, remedy: str, reason: ClusterErrorReason, details: str | None = None
    ) -> None:
        super().__init__(problem, remedy=remedy, details=details)
        self.reason = reason


_CONTEXTS = "`kubectl config get-contexts` lists the contexts; name one: --context NAME"
_ENDPOINT = (
    "`kubectl{flags} cluster-info` tries again; check that the cluster is up and that this machine "
    "reaches its network (a VPN, a proxy)"
)
QUOTA_REMEDY = (
    "`kubectl{flags} describe resourcequota` shows it; request more, or lower cpu, memory and "
    "replicas in your file of values"
)
# Pattern, reason, problem and remedy; the first match counts. {message}: kubectl's message;
# {flags}: context and namespace options.
_ERROR_PATTERNS: Sequence[tuple[str, ClusterErrorReason, str, str]] = (
    (
        r"context was not found|context \S+ does not exist|current-context is not set",
        ClusterErrorReason.NO_CONTEXT,
        "kubectl has no such context: {message}",
        _CONTEXTS,
    ),
    (
        r"error loading config file|invalid configuration",
        ClusterErrorReason.NO_CONTEXT,
        "kubectl cannot read its configuration: {message}",
        "`kubectl config view` shows it; KUBECONFIG names another file",
    ),
    (
        r"server localhost:8080 was refused|no configuration has been provided",
        ClusterErrorReason.UNREACHABLE,
        "kubectl has no configured cluster",
        "set KUBECONFIG to the file from the cluster's owner; " + _CONTEXTS,
    ),
    (
        r"x509: ",
        ClusterErrorReason.UNREACHABLE,
        "the cluster's certificate is invalid: {message}",
        "fetch the cluster's kubeconfig again; then `kubectl{flags} cluster-info`",
    ),
    (
        r"getting credentials|\(Unauthorized\)|must be logged in|provide credentials",
        ClusterErrorReason.UNAUTHORIZED,
        "the cluster does not accept your credentials: {message}",
        "log in again as the cluster's owner describes; then `kubectl{flags} auth can-i --list`",
    ),
    (
        r"i/o timeout|timed out|deadline exceeded|handshake timeout|Client\.Timeout|\(Timeout\)",
        ClusterErrorReason.TIMEOUT,
        "the cluster does not answer in time: {message}",
        _ENDPOINT,
    ),
    (
        (
            r"Unable to connect|was refused|connection refused|no such host|unreachable"
            r"|no route to host|ServiceUnavailable"
        ),
        ClusterErrorReason.UNREACHABLE,
        "the cluster is unreachable: {message}",
        _ENDPOINT,
    ),
    (
        r"exceeded quota|is forbidden: failed quota",
        ClusterErrorReason.QUOTA,
        "the namespace's quota is too small: {message}",
        QUOTA_REMEDY,
    ),
    (
        r"violates PodSecurity|admission webhook .* denied|ValidatingAdmissionPolicy",
        ClusterErrorReason.POLICY,
        "a policy of the cluster forbids it: {message}",
        (
            "`kubectl{flags} get namespace --show-labels` shows the level of Pod Security; change "
            "the named fields in your file of values"
        ),
    ),
    (
        r"\(Forbidden\)|is forbidden",
        ClusterErrorReason.FORBIDDEN,
        "permission denied: {message}",
        (
            "`kubectl{flags} auth can-i --list` lists your permissions; ask the cluster's owner "
            "for a Role"
        ),
    ),
    (
        r'namespaces? "[^"]+" not found',
        ClusterErrorReason.NO_NAMESPACE,
        "the namespace does not exist: {message}",
        "`kubectl get namespaces` lists them; name one: --namespace NAME",
    ),
    (
        r"doesn't have a resource type|no matches for kind|could not find the requested resource",
        ClusterErrorReason.NO_KIND,
        "the cluster has no such kind of object: {message}",
        (
            "install the extension that defines it, or disable that part in your file of values; "
            "`tritonctl doctor --on kubernetes` lists the cluster's extensions"
        ),
    ),
    (
        r"\(NotFound\)|not found",
        ClusterErrorReason.NOT_FOUND,
        "the cluster has no such object: {message}",
        "`tritonctl status --on kubernetes` lists the objects; check the namespace",
    ),
    (
        r"\(Conflict\)|\(AlreadyExists\)|the object has been modified|conflict with",
        ClusterErrorReason.CONFLICT,
        "the object was modified concurrently: {message}",
        "check it (`kubectl{flags} get ... -o yaml`), then try again",
    ),
    (
        r"\(Invalid\)|\(BadRequest\)|is invalid|error validating|cannot unmarshal|strict decoding",
        ClusterErrorReason.INVALID,
        "the cluster rejects the object: {message}",
        "correct the named fields in your file of values, or in the chart",
    ),
)
_MANIFEST_REASONS = {ClusterErrorReason.CONFLICT, ClusterErrorReason.INVALID}


def kubectl_error(text: str, *, flags: str = "") -> TritonctlError:
    """Return the error for the output of a kubectl that failed.

    flags: context and namespace options for commands in remedies, with a leading space.
    """
    lines = _message_lines(text)
    message = _shorten(lines[-1]) if lines else ""
    details = "\n".join(lines) if len(lines) > 1 else None
    for pattern, reason, problem, remedy in _ERROR_PATTERNS:
        if re.search(pattern, text, re.IGNORECASE):
            error_class = ManifestRefusedError if reason in _MANIFEST_REASONS else ClusterError
            return error_class(
                problem.replace("{message}", message),
                remedy=remedy.replace("{flags}", flags),
                reason=reason,
                details=details,
            )
    return ClusterError(
        f"kubectl failed: {message or 'no output'}",
        remedy=f"`kubectl{flags} cluster-info` shows whether the cluster answers",
        reason=ClusterErrorReason.OTHER,
        details=details,
    )


def _message_lines(text: str) -> list[str]:
    """Return kubectl's messages without its log lines."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return [line for line in lines if not _LOG_LINE.match(line)] or lines


def _shorten(line: str) -> str:
    return line.removeprefix("error: ").removeprefix("Error: ")[:_MAX_MESSAGE_LENGTH]
