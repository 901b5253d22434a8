# SPDX-License-Identifier: Apache-2.0
"""What `tritonctl check --url` looks for: a running server against its repository.

No static rules: what they judge is not in the files. Their ids begin with TCS.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from tritonctl.checks.findings import SEVERITIES, Severity


@dataclass(frozen=True)
class LiveRule:
    """One thing that is compared. `summary` is a noun phrase.

    on_loopback: the severity where only this machine reaches the port; None: not reported there.
    Only rules about the port have it.
    """

    id: str
    name: str
    severity: Severity
    summary: str
    why: str
    on_loopback: Severity | None = None


def _rule(
    severity: Severity, title: str, summary: str, why: str, on_loopback: Severity | None = None
) -> LiveRule:
    """One of LIVE_RULES. title: id and name."""
    rule_id, name = title.split()
    return LiveRule(rule_id, name, severity, summary, why, on_loopback)


_error, _warning, _advice = (partial(_rule, severity) for severity in SEVERITIES)
NOT_SERVED = _error(
    "TCS01 model-not-on-the-server",
    "a model of the repository that the server does not have",
    "The server reads another repository, or an older state of this one: clients learn that the "
    "model is unknown.",
)
NOT_READY = _error(
    "TCS02 model-not-ready",
    "a model that the server has and cannot serve, with its reason",
    "Requests for it fail, and for every ensemble that it is a step of.",
)
NOT_LOADED = _warning(
    "TCS03 model-not-loaded",
    "a model that nobody has loaded, or that was unloaded",
    "With explicit model control a server loads what it is asked to load; requests for the rest "
    "fail.",
)
VERSION_MISSING = _error(
    "TCS04 version-not-served",
    "a version that the version policy asks for and the server does not serve",
    "Clients get another version than the repository has, or an error when they name this one.",
)
VERSION_LEFT = _warning(
    "TCS05 version-left-over",
    "a version that is served, although the repository does not ask for it",
    "It was removed, or the policy changed, after it was loaded: the next start of the server will "
    "not have it, and clients that name it will fail.",
)
ELSEWHERE = _warning(
    "TCS06 model-of-another-repository",
    "a model that is served and is in none of the repositories",
    "The repository does not show what it is; a model that a stranger has loaded looks the same.",
)
DIFFERS = _error(
    "TCS07 configuration-differs",
    "a setting of config.pbtxt that is not what the server runs with",
    "What runs now is not what the file says, and the next start changes how the model behaves.",
)
COMPLETED = _advice(
    "TCS08 configuration-completed",
    "settings that the file leaves out and the server has completed",
    "They come from the model file or the backend: another one may choose others, and "
    "nothing in the repository shows it.",
)
METADATA = _error(
    "TCS09 tensors-differ",
    "tensors in the server's metadata that its configuration does not have",
    "Clients build their requests from the metadata: something between them and Triton, or an old "
    "Triton, changes them.",
)
CONTROL = _error(
    "TCS20 model-control-open",
    "model control (index, load, unload) that answers anybody who reaches the port",
    "Whoever may load a model may send its files: with the Python backend that means any code, run "
    "on the server.",
    on_loopback="advice",
)
SHARED_MEMORY = _error(
    "TCS21 shared-memory-open",
    "registration of shared memory that answers anybody who reaches the port",
    "It names and maps memory of the server's machine; several known vulnerabilities start there.",
    on_loopback="advice",
)
LOGGING = _warning(
    "TCS22 log-settings-open",
    "log settings that answer anybody who reaches the port",
    "Whoever changes them can switch the log off, or fill the disk with it.",
    on_loopback="advice",
)
TRACE = _warning(
    "TCS23 trace-settings-open",
    "trace settings that answer anybody who reaches the port",
    "Whoever changes them can trace every request with its tensors, and slow the server down.",
    on_loopback="advice",
)
STATISTICS = _advice(
    "TCS24 statistics-open",
    "statistics that answer anybody who reaches the port",
    "They show which models exist and how much they are used.",
)
PLAIN = _warning(
    "TCS25 no-tls",
    "a port without TLS that other machines reach",
    "Requests, answers and tokens go over the network in plain text; anybody there may read and "
    "change them.",
)
HOLES = _error(
    "TCS26 known-holes",
    "a release of Triton with known vulnerabilities",
    "They are published, with instructions for using them.",
    on_loopback="advice",
)

LIVE_RULES = {rule.id: rule for rule in list(vars().values()) if isinstance(rule, LiveRule)}
