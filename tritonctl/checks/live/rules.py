# SPDX-License-Identifier: Apache-2.0
"""What `tritonctl check --server` looks for: a running server against its repository.

No static rules: what they judge is not in the files. Their ids begin with TCS.
"""

from __future__ import annotations

from dataclasses import dataclass

from tritonctl.checks.findings import Severity


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


NOT_SERVED = LiveRule(
    "TCS01",
    "model-not-on-the-server",
    "error",
    "a model of the repository that the server does not have",
    "The server reads another repository, or an older state of this one: clients learn that the "
    "model is unknown.",
)
NOT_READY = LiveRule(
    "TCS02",
    "model-not-ready",
    "error",
    "a model that the server has and cannot serve, with its reason",
    "Requests for it fail, and for every ensemble that it is a step of.",
)
NOT_LOADED = LiveRule(
    "TCS03",
    "model-not-loaded",
    "warning",
    "a model that nobody has loaded, or that was unloaded",
    "With explicit model control a server loads what it is asked to load; requests for the rest "
    "fail.",
)
VERSION_MISSING = LiveRule(
    "TCS04",
    "version-not-served",
    "error",
    "a version that the version policy asks for and the server does not serve",
    "Clients get another version than the repository has, or an error when they name this one.",
)
VERSION_LEFT = LiveRule(
    "TCS05",
    "version-left-over",
    "warning",
    "a version that is served, although the repository does not ask for it",
    "It was removed, or the policy changed, after it was loaded: the next start of the server will "
    "not have it, and clients that name it will fail.",
)
ELSEWHERE = LiveRule(
    "TCS06",
    "model-of-another-repository",
    "warning",
    "a model that is served and is in none of the repositories",
    "The repository does not show what it is; a model that a stranger has loaded looks the same.",
)
DIFFERS = LiveRule(
    "TCS07",
    "configuration-differs",
    "error",
    "a setting of config.pbtxt that is not what the server runs with",
    "What runs now is not what the file says, and the next start changes how the model behaves.",
)
COMPLETED = LiveRule(
    "TCS08",
    "configuration-completed",
    "advice",
    "settings that the file leaves out and the server has completed",
    "They come from the model file or the backend: another one may choose others, and "
    "nothing in the repository shows it.",
)
METADATA = LiveRule(
    "TCS09",
    "tensors-differ",
    "error",
    "tensors in the server's metadata that its configuration does not have",
    "Clients build their requests from the metadata: something between them and Triton, or an old "
    "Triton, changes them.",
)
CONTROL = LiveRule(
    "TCS20",
    "model-control-open",
    "error",
    "model control (index, load, unload) that answers anybody who reaches the port",
    "Whoever may load a model may send its files: with the Python backend that means any code, run "
    "on the server.",
    on_loopback="advice",
)
SHARED_MEMORY = LiveRule(
    "TCS21",
    "shared-memory-open",
    "error",
    "registration of shared memory that answers anybody who reaches the port",
    "It names and maps memory of the server's machine; several known vulnerabilities start there.",
    on_loopback="advice",
)
LOGGING = LiveRule(
    "TCS22",
    "log-settings-open",
    "warning",
    "log settings that answer anybody who reaches the port",
    "Whoever changes them can switch the log off, or fill the disk with it.",
    on_loopback="advice",
)
TRACE = LiveRule(
    "TCS23",
    "trace-settings-open",
    "warning",
    "trace settings that answer anybody who reaches the port",
    "Whoever changes them can trace every request with its tensors, and slow the server down.",
    on_loopback="advice",
)
STATISTICS = LiveRule(
    "TCS24",
    "statistics-open",
    "advice",
    "statistics that answer anybody who reaches the port",
    "They show which models exist and how much they are used.",
)
PLAIN = LiveRule(
    "TCS25",
    "no-tls",
    "warning",
    "a port without TLS that other machines reach",
    "Requests, answers and tokens go over the network in plain text; anybody there may read and "
    "change them.",
)
HOLES = LiveRule(
    "TCS26",
    "known-holes",
    "error",
    "a release of Triton with known vulnerabilities",
    "They are published, with instructions for using them.",
    on_loopback="advice",
)

LIVE_RULES = {rule.id: rule for rule in list(vars().values()) if isinstance(rule, LiveRule)}
