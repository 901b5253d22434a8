# SPDX-License-Identifier: Apache-2.0
"""The controller: steps, rollbacks, what people ask, and a crash before each of its acts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.rollout_world import LOADED, STARTED, Killed, Rollouts, Service, no_room
from tritonctl.errors import ConfigurationError, HostError
from tritonctl.rollout import evidence
from tritonctl.rollout.controller import Controller
from tritonctl.rollout.journal import Journal, RolloutPhase, open_journal
from tritonctl.rollout.operator_commands import OperatorCommand, pending_commands, submit_command

GOOD = ["move 5", "move 50", "move 100", "stable b", "stop a"]
BAD = ["move 5", "roll back", "stop b at once"]


def test_a_good_candidate(tmp_path: Path) -> None:
    """Step by step to all users; the old version is kept warm, then unloaded."""
    made = Rollouts(tmp_path, Service())
    state = made.run()
    assert made.service.acts == GOOD
    assert (state.phase, state.moved, state.closed) == (RolloutPhase.PROMOTED, True, True)
    assert made.events() == [
        "started", "loaded", *["step", "moved"] * 3, "promoted", "moved", "closed",
    ]  # fmt: skip
    assert made.service.now >= 3 * 10 + 60


def test_a_bad_candidate(tmp_path: Path) -> None:
    """Users first, then the streams; nobody waits for the warm time."""
    made = Rollouts(tmp_path, Service(bad=True))
    state = made.run()
    assert made.service.acts == BAD
    assert (state.phase, state.closed, state.reason) == (
        RolloutPhase.ROLLED_BACK,
        True,
        "its requests fail more often than stable's",
    )
    assert state.outcome["figures"]["candidate"]["failures"] == made.service.exposed
    assert made.service.now < 30


def test_a_candidate_that_is_not_heard_of(tmp_path: Path) -> None:
    """Unknown is never healthy: rolled back within 30 s, and so is a dead one."""
    service = Service()
    made = Rollouts(tmp_path, service)
    made.run(5)
    service.silent.add("b")
    before = service.now
    state = made.run()
    assert state.phase is RolloutPhase.ROLLED_BACK
    assert "no metrics of candidate" in state.reason
    assert service.now - before < 30


@pytest.mark.parametrize(("bad", "acts"), [(False, GOOD), (True, BAD)])
def test_a_crash_before_every_act(tmp_path: Path, bad: bool, acts: list[str]) -> None:
    """The next controller ends where the first one would have, and nobody is left behind."""
    for place_ in range(len(acts)):
        made = Rollouts(tmp_path / str(place_), Service(die_at=place_, bad=bad))
        made.run()
        assert made.service.acts == acts[:place_]
        assert not made.state.closed
        state = made.run()
        assert state.closed
        assert made.service.acts == acts
        assert made.service.routes == 0
        assert made.service.stable == ("a" if bad else "b")


def test_a_controller_that_dies_every_third_second(tmp_path: Path) -> None:
    """Steps are not begun anew, and the requests in between are counted."""
    made = Rollouts(tmp_path, Service())
    for _ in range(20):
        made.run(3)
    assert made.service.acts == GOOD[:4]
    assert made.events().count("step") == 3
    stable = made.decisions()[-1]["figures"]["stable"]["requests"]
    assert stable == made.service.counted["a"][0]
    assert [about.get("shadowed") for about in made.abouts[:3]] == [None, 7, 7]


def test_a_rollback_that_was_decided_and_not_done(tmp_path: Path) -> None:
    """The evidence is enough for the next controller, too, whatever comes next."""
    service = Service(bad=True)
    made = Rollouts(tmp_path, service)
    made.run(each=dies_instead)
    state = made.run(3)
    assert state.phase is RolloutPhase.ROLLED_BACK


def dies_instead(controller: Controller) -> None:
    """It does not live to roll back."""

    def killed(*_: object, **__: object) -> None:
        raise Killed

    controller._roll_back = killed  # type: ignore[method-assign]


def test_users_that_were_taken_back(tmp_path: Path) -> None:
    """By a rename while no controller ran: that is the end of it."""
    made = Rollouts(tmp_path, Service())
    made.run(20)
    assert made.service.routes == 50
    made.service.roll_back()
    state = made.run()
    assert (state.phase, state.reason) == (
        RolloutPhase.ROLLED_BACK,
        "another process took its users back",
    )
    assert "stop b" in made.service.acts


def test_interrupted_while_loading(tmp_path: Path) -> None:
    """Nobody was moved: what was loaded is unloaded."""
    with open_journal(tmp_path, 1) as (journal, _):
        journal.add(STARTED)
    made = Rollouts.__new__(Rollouts)
    made.rollouts, made.folder, made.service, made.abouts = tmp_path, tmp_path / "1", Service(), []
    state = made.run()
    assert state.closed
    assert "interrupted" in state.reason
    assert made.service.acts == ["roll back", "stop b at once"]


@pytest.mark.parametrize(
    ("service", "told"),
    [
        ({"rate": 0}, "the gateway has had no request: no user is moved"),
        ({"with_user": False}, "requests, none with the header x-user"),
    ],
)
def test_nobody_to_move(tmp_path: Path, service: dict[str, int], told: str) -> None:
    """It is told, nothing is done, and the first user begins the first step."""
    made = Rollouts(tmp_path, Service(**service))  # type: ignore[arg-type]
    made.run(30)
    assert made.service.acts == []
    assert told in made.decisions()[-1]["reason"]
    made.service.rate, made.service.with_user = 20, True
    made.run(5)
    assert made.service.acts == ["move 5"]


def test_pause_and_resume(tmp_path: Path) -> None:
    """A paused rollout takes no step, and takes users back all the same."""
    made = Rollouts(tmp_path, Service())
    made.run(3)
    submit_command(made.folder, OperatorCommand.PAUSE)
    assert made.run(100).phase is RolloutPhase.HOLDING
    assert made.service.acts == ["move 5"]
    assert pending_commands(made.folder) == []
    submit_command(made.folder, OperatorCommand.RESUME)
    assert made.run(3).step == 1
    submit_command(made.folder, OperatorCommand.PAUSE)
    made.run(2)
    made.service.bad = True
    assert made.run(30).phase is RolloutPhase.ROLLED_BACK


def test_promoted_by_hand_and_taken_back(tmp_path: Path) -> None:
    """All users now; while the old version is warm, an abort leads back to it."""
    made = Rollouts(tmp_path, Service())
    made.run(3)
    submit_command(made.folder, OperatorCommand.PROMOTE)
    assert made.run(2).phase is RolloutPhase.PROMOTED
    assert made.service.stable == "b"
    submit_command(made.folder, OperatorCommand.ABORT)
    state = made.run()
    assert (state.phase, state.reason, state.closed) == (RolloutPhase.ROLLED_BACK, "by hand", True)
    assert made.service.acts == ["move 5", "stable b", "stable a", "stop b"]


@pytest.mark.parametrize(
    ("ask", "acts"),
    [
        (OperatorCommand.ABORT, ["move 5", "roll back"]),
        (OperatorCommand.ABORT_AT_ONCE, ["move 5", "roll back", "stop b at once"]),
    ],
)
def test_aborted(tmp_path: Path, ask: OperatorCommand, acts: list[str]) -> None:
    """The candidate stays warm and ends its streams, unless it is to be cut."""
    made = Rollouts(tmp_path, Service())
    made.run(3)
    submit_command(made.folder, ask)
    made.run(3)
    assert made.service.acts == acts
    submit_command(made.folder, OperatorCommand.CLOSE)
    assert made.run(2).closed
    assert "b" not in made.service.loaded


def test_a_gateway_that_misses_it(tmp_path: Path) -> None:
    """The rename is done again and again; the candidate ends when the gateway serves it."""
    made = Rollouts(tmp_path, Service(bad=True, deaf=33))
    made.run(30)
    assert set(made.service.acts[1:]) == {"roll back"}
    assert 4 <= len(made.service.acts) <= 6
    made.run()
    assert made.service.acts[-1] == "stop b at once"
    assert made.confirmations() == [False, False, True]


def test_a_step_waits_for_the_gateway(tmp_path: Path) -> None:
    """The next one begins when the gateway serves the one before, and is journaled as confirmed."""
    made = Rollouts(tmp_path, Service(deaf=1))
    made.run(3)
    assert made.confirmations() == [False]
    made.service.deaf = 10**6
    made.run(400)
    assert made.service.acts == ["move 5"]
    made.service.deaf = 0
    made.run(400)
    assert made.service.acts[:2] == ["move 5", "move 50"]
    assert made.confirmations()[:3] == [False, True, True]


def test_old_servers_stay_until_the_gateway_serves_the_new_ones(tmp_path: Path) -> None:
    """A promotion that the gateway has not read empties no slot, however long it is warm."""
    made = Rollouts(tmp_path, Service())
    made.run(3)
    submit_command(made.folder, OperatorCommand.PROMOTE)
    made.service.deaf = 10**6
    made.run(10_000)
    assert made.service.acts[-1] == "stable b"
    made.service.deaf = 0
    made.run()
    assert made.service.acts[-1] == "stop a"


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who cannot write the journal takes users back."""
    made = Rollouts(tmp_path, Service())
    made.run(3)
    monkeypatch.setattr(Journal, "add", no_room)
    monkeypatch.setattr(evidence, "write_atomically", no_room)
    with pytest.raises(HostError):
        made.run(3)
    assert made.service.acts == ["move 5", "roll back"]
    monkeypatch.undo()


def test_evidence_that_does_not_fit(tmp_path: Path) -> None:
    """A damaged file is none: the step begins anew."""
    made = Rollouts(tmp_path, Service())
    made.run(15)
    for damage in ("", "[]", '{"version":1}', '{"version":1,"about":{},"judge":{}}', "NaN"):
        (made.folder / evidence.EVIDENCE).write_text(damage)
        made.run(1)
        assert made.abouts[-1] == {}
        assert made.decisions()[-1]["figures"]["step_seconds"] == 0


def test_a_decision_is_not_written_for_ever(tmp_path: Path) -> None:
    """Each second at first; a rollout that waits for a day writes hundreds of lines, not 86,400."""
    made = Rollouts(tmp_path, Service(rate=0))
    made.run(400)
    assert 150 < len(made.decisions()) < 250


def test_no_rollout(tmp_path: Path) -> None:
    """An empty journal is none."""
    made = Rollouts(tmp_path, Service())
    with (
        open_journal(tmp_path, 2) as (journal, entries),
        pytest.raises(ConfigurationError, match="no rollout to continue"),
    ):
        Controller(journal, entries, tmp_path / "2", made.world())
    assert LOADED.details["times"] == []
