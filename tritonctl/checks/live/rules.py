# SPDX-License-Identifier: Apache-2.0
"""The rules of `tritonctl check --url`, which compares a running server with its repository.

They are not static rules, because they judge data outside the files. Their ids begin with TCS.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from tritonctl.checks.findings import SEVERITIES, Severity


@dataclass(frozen=True)
class LiveRule:
    """A rule about a running server."""

    id: str
    name: str
    severity: Severity
    summary: str  # a noun phrase
    reason: str
    # Severity if only this machine reaches the port; None: not reported there. Only rules about
    # the port set it.
    on_loopback: Severity | None = None


def _live_rule(
    severity: Severity, title: str, summary: str, reason: str, on_loopback: Severity | None = None
) -> LiveRule:
    """Create a live rule. `title` holds its id and name."""
    rule_id, name = title.split()
    return LiveRule(rule_id, name, severity, summary, reason, on_loopback)


_error, _warning, _advice = (partial(_live_rule, severity) for severity in SEVERITIES)
NOT_SERVED = _error(
    "TCS01 model-not-on-the-server",
    "a model of the repository that the server does not have",
    "The server reads another repository or an older state of this one. Clients get the error that "
    "the model is unknown.",
)
NOT_READY = _error(
    "TCS02 model-not-ready",
    "a model that the server has and cannot serve, with the reason",
    "Requests to it fail, and to every ensemble with it as a step.",
)
NOT_LOADED = _warning(
    "TCS03 model-not-loaded",
    "a model that was never loaded, or was unloaded",
    "With explicit model control, a server loads only the requested models; requests to others "
    "fail.",
)
VERSION_MISSING = _error(
    "TCS04 version-not-served",
    "a version that the version policy selects and the server does not serve",
    "Clients get a different version than the repository has, or an error if they request this "
    "one.",
)
VERSION_LEFT_OVER = _warning(
    "TCS05 version-left-over",
    "a served version that the repository does not select",
    "The version was removed, or the policy changed, after the load. After the next start the "
    "server does not have it, and clients that request it fail.",
)
NOT_IN_REPOSITORY = _warning(
    "TCS06 model-of-another-repository",
    "a served model that is in none of the repositories",
    "Its source is unknown: a model that an attacker has loaded looks the same.",
)
DIFFERS = _error(
    "TCS07 configuration-differs",
    "a setting of config.pbtxt that differs from the server's",
    "The server does not run with the file's configuration, and the next start changes the model's "
    "behaviour.",
)
COMPLETED = _advice(
    "TCS08 configuration-completed",
    "settings that the file omits and the server has completed",
    "They come from the model file or the backend. Another backend version may choose other "
    "values, and nothing in the repository shows the change.",
)
METADATA = _error(
    "TCS09 tensors-differ",
    "tensors in the server's metadata that its configuration does not have",
    "Clients build their requests from the metadata. A proxy, or an old Triton, changes it.",
)
CONTROL = _error(
    "TCS20 model-control-open",
    "model control (index, load, unload) open to every client that reaches the port",
    "A client that may load a model may send its files. With the Python backend it can run any "
    "code on the server.",
    on_loopback="advice",
)
SHARED_MEMORY = _error(
    "TCS21 shared-memory-open",
    "registration of shared memory open to every client that reaches the port",
    "It maps memory of the server's machine; several known vulnerabilities start there.",
    on_loopback="advice",
)
LOGGING = _warning(
    "TCS22 log-settings-open",
    "log settings open to every client that reaches the port",
    "A client can switch the log off, or fill the disk with it.",
    on_loopback="advice",
)
TRACE = _warning(
    "TCS23 trace-settings-open",
    "trace settings open to every client that reaches the port",
    "A client can trace every request with its tensors, and slow the server down.",
    on_loopback="advice",
)
STATISTICS = _advice(
    "TCS24 statistics-open",
    "statistics open to every client that reaches the port",
    "They show which models exist and how much they are used.",
)
NO_TLS = _warning(
    "TCS25 no-tls",
    "a port without TLS that other machines reach",
    "Requests, responses and tokens cross the network in plain text, where others can read and "
    "change them.",
)
KNOWN_VULNERABILITIES = _error(
    "TCS26 known-holes",
    "a release of Triton with known vulnerabilities",
    "The vulnerabilities are published, with instructions for exploiting them.",
    on_loopback="advice",
)

LIVE_RULES = {rule.id: rule for rule in list(vars().values()) if isinstance(rule, LiveRule)}
