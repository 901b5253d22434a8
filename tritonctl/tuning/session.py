# SPDX-License-Identifier: Apache-2.0
"""The folder of a tuning session, from which an interrupted session resumes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tritonctl.errors import UsageError
from tritonctl.host.files import write_atomically
from tritonctl.host.version import __version__
from tritonctl.loadtest.run.plan import build_load_plan, effective_slo
from tritonctl.project.scenario import Scenario
from tritonctl.project.schema import Project
from tritonctl.protocol.channel import Endpoint
from tritonctl.repository.server_environment import SERVER_VERSION
from tritonctl.tuning.outcome import SearchBudget
from tritonctl.tuning.queueing import ServiceCurve
from tritonctl.tuning.service_time import ServiceTime
from tritonctl.tuning.space import SearchSpace

_FILE = "session.json"


@dataclass(frozen=True)
class TuningSession:
    """A session's folder and its context."""

    folder: Path
    context: str  # trials of equal contexts are comparable

    @property
    def trials(self) -> Path:
        """The folder of the trials."""
        return self.folder / "trials"

    def read(self) -> tuple[ServiceTime | None, SearchBudget] | None:
        """Read the recorded start of the search; None if the search never started."""
        try:
            record = json.loads((self.folder / _FILE).read_text(encoding="utf-8"))
            service = record["service_time"]
            if service:
                curve = ServiceCurve(**service["curve"])
                points = tuple((b, s) for b, s in service["points"])
                service = ServiceTime(**{**service, "curve": curve, "points": points})
            return service, SearchBudget(**record["budget"])
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def record(self, service: ServiceTime | None, budget: SearchBudget) -> None:
        """Record the start of the search; with the trials it makes the search repeatable."""
        record = {
            "context": self.context,
            "service_time": asdict(service) if service else None,
            "budget": asdict(budget),
        }
        write_atomically(self.folder / _FILE, json.dumps(record, indent=2))


def tuning_folder(project: Project, model: str) -> Path:
    """Return the folder of a model's tuning sessions."""
    return project.state / "tuning" / model


def session_context(project: Project, scenario: Scenario, space: SearchSpace) -> str:
    """Digest engine, server, load, SLO and knobs, which make trials comparable."""
    plan = build_load_plan(project.root, scenario, Endpoint(""))
    for name in ("arrivals", "duration_seconds", "count"):
        plan.pop(name)
    arrivals = scenario.arrivals.model_dump(mode="json")
    record: Mapping[str, Any] = {
        "tritonctl": __version__,
        "server": SERVER_VERSION,
        "engine": space.artefacts[space.model].manifest.fingerprint,
        "serving": project.models[space.model].serving.model_dump(mode="json"),
        "plan": plan,
        "arrivals": {k: v for k, v in arrivals.items() if k != "rate"},
        "slo": effective_slo(project, scenario).model_dump(),
        "knobs": {knob.name: knob.values for knob in space.knobs},
    }
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:16]


def create_session(folder: Path, context: str) -> TuningSession:
    """Create a session with a new folder, named after time and context."""
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    return TuningSession(folder / f"{stamp}-{context}", context)


def find_last_session(folder: Path, context: str) -> TuningSession:
    """Return the latest session with this context. Raises UsageError without one."""
    sessions = sorted(folder.glob(f"*-{context}/{_FILE}"))
    if sessions:
        return TuningSession(sessions[-1].parent, context)
    other_sessions = list(folder.glob(f"*/{_FILE}"))
    reason = (
        ": the engine, the load, the SLO or the settings have changed since"
        if other_sessions
        else ""
    )
    raise UsageError(
        f"no session to resume{reason}", remedy="run the same command without --resume"
    )
