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
from tritonctl.loadtest.run.plan import load_plan, slo_of
from tritonctl.project.scenario import Scenario
from tritonctl.project.schema import Project
from tritonctl.protocol.channel import Endpoint
from tritonctl.repository.server_environment import SERVER_VERSION
from tritonctl.tuning.outcome import Budget
from tritonctl.tuning.queueing import ServiceCurve
from tritonctl.tuning.service_time import ServiceTime
from tritonctl.tuning.space import Space

_FILE = "session.json"


@dataclass(frozen=True)
class Session:
    """A session's folder and its context; trials of equal contexts are comparable."""

    folder: Path
    context: str

    @property
    def trials(self) -> Path:
        """The folder of the trials."""
        return self.folder / "trials"

    def read(self) -> tuple[ServiceTime | None, Budget] | None:
        """The recorded start of the session's search; None when it did not get that far."""
        try:
            record = json.loads((self.folder / _FILE).read_text(encoding="utf-8"))
            service = record["service_time"]
            if service:
                curve = ServiceCurve(**service["curve"])
                points = tuple((b, s) for b, s in service["points"])
                service = ServiceTime(**{**service, "curve": curve, "points": points})
            return service, Budget(**record["budget"])
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def record(self, service: ServiceTime | None, budget: Budget) -> None:
        """Record the start of the search; with it and the trials a search can be repeated."""
        record = {
            "context": self.context,
            "service_time": asdict(service) if service else None,
            "budget": asdict(budget),
        }
        write_atomically(self.folder / _FILE, json.dumps(record, indent=2))


def tuning_folder(project: Project, model: str) -> Path:
    """The folder of all tuning sessions of a model."""
    return project.state / "tuning" / model


def context_of(project: Project, scenario: Scenario, space: Space) -> str:
    """Digest of engine, server, load, SLO and knobs: what makes trials comparable."""
    plan = load_plan(project.root, scenario, Endpoint(""))
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
        "slo": slo_of(project, scenario).model_dump(),
        "knobs": {knob.name: knob.values for knob in space.knobs},
    }
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:16]


def new_session(folder: Path, context: str) -> Session:
    """A session with a new folder, named after the time and the context."""
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    return Session(folder / f"{stamp}-{context}", context)


def last_session(folder: Path, context: str) -> Session:
    """The latest session with this context. Raises UsageError without one."""
    sessions = sorted(folder.glob(f"*-{context}/{_FILE}"))
    if sessions:
        return Session(sessions[-1].parent, context)
    others = list(folder.glob(f"*/{_FILE}"))
    reason = ": the engine, the load, the SLO or the settings have changed since" if others else ""
    raise UsageError(
        f"no session to resume{reason}", remedy="run the same command without --resume"
    )
