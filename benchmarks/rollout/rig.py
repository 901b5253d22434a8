# SPDX-License-Identifier: Apache-2.0
"""The service under test: servers in two slots, Envoy, controller, all by `tritonctl` itself."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import FREE_PORTS, say
from planting import FAULTS, SOUND, Fault, release, reset, write_project
from tritonctl import Project, load_project
from tritonctl.releases.store import StoredRelease, stored_releases
from tritonctl.rollout.journal import (
    JournalEntry,
    JournalEvent,
    RolloutState,
    last_rollout_number,
    read_journal,
    replay,
)
from tritonctl.runtimes.slot_servers import server_in_slot, stable_slot

PATIENCE_SECONDS = 120.0
_LOOK_SECONDS = 0.2
ENDED = frozenset({JournalEvent.ROLLED_BACK, JournalEvent.PROMOTED})


@dataclass(frozen=True)
class Done:
    """A command of tritonctl's. record: what `--json` printed; {} for none."""

    code: int
    record: Mapping[str, Any]
    words: str


class Rig:
    """One project, its releases, and its gateway's address. stable: the first release.

    What an earlier rig has built in `folder` is not built again.
    """

    def __init__(self, folder: Path, rollout: Mapping[str, Any], **sections: Any) -> None:
        self.port, admin = _free_ports(2)
        gateway = {"port": self.port, "admin_port": admin}
        given = {"server": FREE_PORTS, "gateway": gateway, **sections}
        self.url = f"127.0.0.1:{self.port}"
        if len(built := _built(folder)) > 1:
            self.stable, self.twin = built[:2]
            self._change(folder, gateway=gateway)
            self.down()  # what was cut off
            self.settings(rollout)
            return
        self.project: Project = write_project(folder, rollout, **given)
        self.stable = release(self.project, SOUND)
        self.twin = release(self.project, SOUND, text="the same again")

    @property
    def served(self) -> str:
        """The number of the release that serves; empty where none does."""
        serves = server_in_slot(self.project, stable_slot(self.project))
        return (serves.release or "").partition("-")[0] if serves else ""

    @property
    def equal(self) -> StoredRelease:
        """Of the two sound releases, the one that does not serve."""
        return self.twin if self.served == str(self.stable.number) else self.stable

    def planted(self, fault: Fault) -> StoredRelease:
        """A release with this fault."""
        try:
            return release(self.project, fault.name, fault.precision)
        finally:
            reset(self.project)

    def settings(self, rollout: Mapping[str, Any]) -> None:
        """Other steps, holds or shadows from the next rollout on."""
        self._change(self.project.root, rollout=rollout)

    def _change(self, folder: Path, **sections: Mapping[str, Any]) -> None:
        file = folder / "tritonctl.yaml"
        record = json.loads(file.read_text(encoding="utf-8"))
        for name, fields in sections.items():
            record[name] |= fields
        file.write_text(json.dumps(record), encoding="utf-8")
        self.project = load_project(folder)

    def command(self, *arguments: str, check: bool = True) -> Done:
        """Raises RuntimeError where it fails, unless that is not to be checked."""
        command = [sys.executable, "-m", "tritonctl", *arguments, "--json"]
        done = subprocess.run(
            command, cwd=self.project.root, capture_output=True, text=True, check=False
        )
        try:
            record = json.loads(done.stdout)
        except ValueError:
            record = {}
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(arguments)}: {done.stderr[-3000:]}")
        return Done(done.returncode, record, done.stderr.strip())

    def start(self, candidate: StoredRelease) -> Done:
        """Begin a rollout. One that is slow to say its first word has begun all the same."""
        before = last_rollout_number(self.rollouts) or 0
        done = self.command("rollout", "start", str(candidate.number), check=False)
        state = self.state()
        if (
            done.code
            and (last_rollout_number(self.rollouts) or 0) > before
            and state
            and not state.is_over
        ):
            return Done(0, done.record, done.words)
        return done

    def up(self) -> None:
        """Stable serves, behind Envoy."""
        self.command("up", "--release", str(self.stable.number))

    def down(self) -> None:
        """All of it."""
        self.command("down", check=False)

    @property
    def rollouts(self) -> Path:
        """Where journals are."""
        return self.project.state / "rollouts"

    def entries(self) -> Sequence[JournalEntry]:
        """The journal of the last rollout."""
        number = last_rollout_number(self.rollouts)
        return read_journal(self.rollouts / str(number)) if number is not None else []

    def state(self) -> RolloutState | None:
        """What that amounts to."""
        return replay(self.entries())

    def wait(self, until: Callable[[RolloutState], bool], seconds: float) -> bool:
        """Until the last rollout is so; whether it was in time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            state = self.state()
            if state is not None and until(state):
                return True
            time.sleep(_LOOK_SECONDS)
        return False

    def settle(self) -> None:
        """Whatever the last rollout has left, stable serves alone again."""
        state = self.state()
        if state is not None and not state.is_over:
            self.command("rollout", "abort", "--at-once", check=False)
        if not self.wait(lambda state: state.closed, PATIENCE_SECONDS):
            say(f"the last rollout does not close: {self.state()}")


def _built(folder: Path) -> Sequence[StoredRelease]:
    """Releases that are there already, the oldest first."""
    there = (folder / "tritonctl.yaml").exists()
    return stored_releases(load_project(folder)) if there else []


def at_of(entries: Sequence[JournalEntry], *events: JournalEvent) -> float | None:
    """When the first of these was written."""
    return next((entry.at for entry in entries if entry.event in events), None)


def fault_named(name: str) -> Fault:
    """One of them."""
    return next(fault for fault in FAULTS if fault.name == name)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in held:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in held]
