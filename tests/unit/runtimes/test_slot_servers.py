# SPDX-License-Identifier: Apache-2.0
"""Two groups of servers, without any: which slot is which, what is refused before users move."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.json_page import as_documented
from tests.unit.releases.releasing import released_once, releases, uncompiled
from tests.unit.runtimes.test_reloading import embedded_server
from tritonctl.errors import (
    ConfigurationError,
    HostError,
    RepositoryError,
    ServerError,
    TritonctlError,
    UsageError,
)
from tritonctl.gateway.placement import gateway_of
from tritonctl.gateway.shares import ROLLBACK_ROUTES, ROUTES, TrafficSplit, read_split
from tritonctl.host import resources
from tritonctl.host.files import try_exclusive
from tritonctl.host.process import process_start_time
from tritonctl.host.progress import Silent
from tritonctl.project.schema import Project
from tritonctl.releases.differences import ReleaseDifference
from tritonctl.releases.serving import rendered_release
from tritonctl.releases.slots import controller_lock
from tritonctl.releases.store import StoredRelease
from tritonctl.repository.publish import RenderedRepository
from tritonctl.rollout.host_environment import HostService
from tritonctl.rollout.traffic import Traffic
from tritonctl.runtimes import lifecycle, slot_servers
from tritonctl.runtimes import release_memory as memory
from tritonctl.runtimes.embedded import gateway
from tritonctl.runtimes.embedded.gateway import GatewayFiles
from tritonctl.runtimes.embedded.gateway_process import GatewayProcess
from tritonctl.runtimes.release_switch import prune_releases, rollback, serve_release
from tritonctl.runtimes.server_state import (
    EmbeddedServer,
    ServerFiles,
    read_state,
    remove_state,
    write_state,
)
from tritonctl.runtimes.slot_servers import (
    Slot,
    make_stable,
    stable_slot,
    start_candidate,
    stop_slot,
)

if TYPE_CHECKING:
    from tests.unit.conftest import Cli, Sandbox

__all__ = ["released_once", "releases", "uncompiled"]  # fixtures
HERE = {"pid": os.getpid(), "process_started": process_start_time(os.getpid()) or 0}


def serve(project: Project, slot: Slot, release: str, **more: Any) -> EmbeddedServer:
    """Servers in a slot that are this process, as they were recorded."""
    state = embedded_server(HERE["pid"], HERE["process_started"], (1, 2, 3), [])
    state = replace(state, release=release, **more)
    write_state(ServerFiles.of(project, slot), state)
    return state


@pytest.fixture
def project(built: Sandbox, releases: list[StoredRelease]) -> Project:
    """Release 1 is served in slot a, behind a gateway; 2 could be."""
    built.data["rollout"] = {"user_header": "x-user-id"}
    built.write()
    loaded = built.load()
    files = GatewayFiles.of(loaded)
    process = GatewayProcess(address="127.0.0.1", port=8080, admin_port=9901, **HERE)
    files.folder.mkdir(parents=True)
    files.records[0].write_text(json.dumps(asdict(process)), encoding="utf-8")
    gateway.route_all_to_stable(loaded)
    serve(loaded, Slot.A, releases[0].name)
    return loaded


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway finds everybody ready."""
    monkeypatch.setattr(gateway, "wait_until_healthy", lambda *_: None)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Project]:
    """In the place of servers that start: as which project they were to."""
    seen: list[Project] = []

    def start_servers(
        project: Project,
        rendered: RenderedRepository,
        settings: str,
        slot: Slot,
        _: object,
        fallbacks: Sequence[str],
    ) -> EmbeddedServer:
        assert fallbacks == ["127.0.0.1:1"]  # stable's Triton
        seen.append(project)
        state = embedded_server(HERE["pid"], HERE["process_started"], (11, 12, 13), [])
        state = replace(state, release=rendered.plan.release_name, settings=settings)
        write_state(ServerFiles.of(project, slot), state)
        return state

    monkeypatch.setattr(slot_servers, "start_servers", start_servers)
    return seen


def division(project: Project) -> TrafficSplit | None:
    """Who has the users by the routes."""
    return read_split(slot_servers.routes_folder(project) / ROUTES)


def traffic(project: Project) -> Traffic:
    """As a controller has it."""
    folder, place = slot_servers.routes_folder(project), slot_servers.gateway_placement(project)
    return Traffic(folder, gateway_of(project), place, project.rollout)


def addresses(project: Project, cluster: str) -> list[int]:
    """The ports of a cluster's servers, as Envoy reads them."""
    text = (GatewayFiles.of(project).endpoints / f"{cluster}.json").read_text(encoding="utf-8")
    [resource] = json.loads(text)["resources"]
    assert resource["cluster_name"] == cluster
    return [
        each["endpoint"]["address"]["socket_address"]["port_value"]
        for each in resource["endpoints"][0]["lb_endpoints"]
    ]


def test_which_slot_is_stable(project: Project) -> None:
    """`a` without a file; servers of the stable one are the project's."""
    assert stable_slot(project) is Slot.A
    assert ServerFiles.of(project).folder == project.state / "server"
    file = project.state / "stable"
    file.write_text("b\n")
    assert ServerFiles.of(project).folder == project.state / "server-b"
    for nonsense in ("", "c", "a b", "\udcff"):
        file.write_text(nonsense, errors="surrogateescape")
        with pytest.raises(HostError, match="neither slot") as caught:
            ServerFiles.of(project)
        assert str(file) in caught.value.remedy


def test_a_candidate_is_loaded_beside(
    project: Project, releases: list[StoredRelease], started: list[Project]
) -> None:
    """On ports of its own, behind its own link, known to Envoy; all users are stable's."""
    traffic(project).move(5)  # of one that has gone
    server = start_candidate(project, releases[1], Silent())
    assert server == slot_servers.server_in_slot(project, Slot.B)
    [as_released] = started
    assert {*as_released.server.configured_ports.values()} == {0}
    links = {link: (project.root / "releases" / link) for link in ("current", "current-b")}
    assert links["current-b"].readlink().name == releases[1].name
    assert not links["current"].exists()
    assert addresses(project, "triton_grpc_b") == [11]
    assert addresses(project, "triton_rest_b") == [12]
    assert division(project) == TrafficSplit(Slot.A, 0)
    assert server.settings == lifecycle.settings_fingerprint(project)
    assert start_candidate(project, releases[1], Silent()) == server
    assert len(started) == 1
    state = slot_servers.standby_slot(project)
    assert state is not None
    assert (state.slot, state.share, state.ready) == (Slot.B, 0, False)
    planned = prune_releases(project, None, 1, Silent())
    assert releases[1].name in {one.name for one in planned.retained}


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Slot, bool]]:
    """In the place of servers that end: which, and whether at once."""
    seen: list[tuple[Slot, bool]] = []

    def stop(project: Project, slot: Slot, *, at_once: bool) -> None:
        seen.append((slot, at_once))
        remove_state(ServerFiles.of(project, slot))

    monkeypatch.setattr(slot_servers, "stop_slot", stop)
    return seen


def test_a_slot_that_is_taken(
    project: Project,
    releases: list[StoredRelease],
    started: list[Project],
    stopped: list[tuple[Slot, bool]],
) -> None:
    """What a rollback has left warm there makes room; else only `down` would."""
    serve(project, Slot.B, "7-0123456789ab")
    server = start_candidate(project, releases[1], Silent())
    assert stopped == [(Slot.B, False)]
    assert (server.release, len(started)) == (releases[1].name, 1)


def test_what_a_rollout_unloads_in_the_end(
    project: Project, releases: list[StoredRelease], stopped: list[tuple[Slot, bool]]
) -> None:
    """What users do not have: also where `releases rollback` has changed that meanwhile."""
    for at_once in (True, False):
        serve(project, Slot.B, releases[1].name)
        assert HostService(project).stop("b", at_once=at_once) == "b"
    serve(project, Slot.B, releases[1].name)
    assert HostService(project).stop("a", at_once=True) == "b"
    assert stopped == [(Slot.B, True), (Slot.B, False), (Slot.B, False)]


def _without_header(project: Project, _: list[StoredRelease]) -> None:
    settings = project.rollout.model_copy(update={"user_header": None})
    object.__setattr__(project, "rollout", settings)


def _without_gateway(project: Project, _: list[StoredRelease]) -> None:
    for file in GatewayFiles.of(project).records:
        file.unlink(missing_ok=True)


def _without_server(project: Project, _: list[StoredRelease]) -> None:
    remove_state(ServerFiles.of(project))


def _of_no_release(project: Project, _: list[StoredRelease]) -> None:
    serve(project, Slot.A, "")


def _of_the_same(project: Project, releases: list[StoredRelease]) -> None:
    serve(project, Slot.A, releases[1].name)


def _of_one_that_is_gone(project: Project, _: list[StoredRelease]) -> None:
    serve(project, Slot.A, "9-ffffffffffff")


def _damaged(_: Project, releases: list[StoredRelease]) -> None:
    file = releases[1].repository / "speller" / "config.pbtxt"
    file.chmod(0o644)
    file.write_text("# another one\n", encoding="utf-8")


@pytest.mark.parametrize(
    ("spoil", "kind", "said"),
    [
        (_without_header, ConfigurationError, r"rollout\.user_header is missing"),
        (_without_gateway, ServerError, "no gateway is running"),
        (_without_server, ServerError, "no server is running"),
        (_of_no_release, ServerError, "last rendered repository"),
        (_of_the_same, UsageError, "is already live"),
        (_of_one_that_is_gone, RepositoryError, "is no longer stored"),
        (_damaged, RepositoryError, "not as it was published"),
    ],
)
def test_what_is_no_candidate(
    spoil: Any,
    kind: type[TritonctlError],
    said: str,
    project: Project,
    releases: list[StoredRelease],
    started: list[Project],
) -> None:
    """Told before a server starts, with what to do."""
    spoil(project, releases)
    with pytest.raises(kind, match=said) as caught:
        start_candidate(project, releases[1], Silent())
    assert "tritonctl" in caught.value.remedy or "user_header" in caught.value.remedy
    assert started == []


def test_other_tensors(
    project: Project,
    releases: list[StoredRelease],
    started: list[Project],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Clients would break: refused by name, unless asked for."""
    changed = [
        ReleaseDifference(
            "speller.input.text_input", "TYPE_STRING [1]", None, section="clients", breaking=True
        ),
        ReleaseDifference("speller.output.more", None, "TYPE_FP32 [1]", section="clients"),
    ]
    monkeypatch.setattr(slot_servers, "compare_releases", lambda *_: changed)
    with pytest.raises(RepositoryError, match=r"text_input: TYPE_STRING \[1\] → absent") as caught:
        start_candidate(project, releases[1], Silent())
    assert "more" not in caught.value.problem
    assert "--breaking" in caught.value.remedy
    assert started == []
    start_candidate(project, releases[1], Silent(), breaking=True)
    assert len(started) == 1


def test_memory_that_is_not_there(
    project: Project,
    releases: list[StoredRelease],
    started: list[Project],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A candidate is taken to need what stable has, and more for larger files."""
    state = slot_servers.server_in_slot(project, Slot.A)
    assert isinstance(state, EmbeddedServer)
    now = memory.memory_in_use(state)
    assert now > 10 << 20  # this process
    monkeypatch.setattr(memory, "available_memory", lambda: now // 2)
    with pytest.raises(HostError, match=r"needs about .* are free") as caught:
        start_candidate(project, releases[1], Silent())
    assert f"up --release {releases[1].number}" in caught.value.remedy
    assert started == []
    monkeypatch.setattr(memory, "available_memory", lambda: None)  # the system does not say
    start_candidate(project, releases[1], Silent())


def test_free_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's, or what is left of a container's; files that are cached count as free."""
    assert 0 < (resources.available_memory() or 0) < (resources.host_memory() or 0)
    for name, text in {"memory.max": "1000", "memory.current": "900"}.items():
        (tmp_path / name).write_text(f"{text}\n")
    (tmp_path / "memory.stat").write_text("anon 700\ninactive_file 150\nactive_file 50\n")
    monkeypatch.setattr(resources, "_MEMORY_LIMIT", tmp_path / "memory.max")
    monkeypatch.setattr(resources, "_MEMORY_USED", tmp_path / "memory.current")
    monkeypatch.setattr(resources, "_MEMORY_KINDS", tmp_path / "memory.stat")
    assert resources.available_memory() == 300
    (tmp_path / "memory.max").write_text("max\n")
    assert (resources.available_memory() or 0) > 300


def test_a_promotion(project: Project, releases: list[StoredRelease]) -> None:
    """The project's servers are the other slot's; users, also those without a header, are there."""
    serve(project, Slot.B, releases[1].name)
    traffic(project).move(100)
    for _ in range(2):
        make_stable(project, Slot.B)
        assert stable_slot(project) is Slot.B
        assert division(project) == TrafficSplit(Slot.B, 0)
        assert not (slot_servers.routes_folder(project) / ROLLBACK_ROUTES).exists()
        state = read_state(ServerFiles.of(project))
        assert state is not None
        assert (state.release, state.previous_release) == (releases[1].name, releases[0].name)
    slots = slot_servers.gateway_placement(project).slots
    assert slots is not None
    assert slots.stable is Slot.B
    traffic(project).move(5)
    assert division(project) == TrafficSplit(Slot.B, 5)


def test_nobody_is_given_to_an_empty_slot(project: Project) -> None:
    """Whatever is asked for."""
    with pytest.raises(ServerError, match="no server runs in slot b"):
        make_stable(project, Slot.B)
    assert stable_slot(project) is Slot.A


def test_who_is_stopped(project: Project, releases: list[StoredRelease]) -> None:
    """The candidate, never the stable one; an empty slot is no error."""
    with pytest.raises(ServerError, match="slot a is the stable slot"):
        stop_slot(project, Slot.A, at_once=True)
    for at_once in (True, False):
        stop_slot(project, Slot.B, at_once=at_once)
        traffic(project).move(5)
        serve(project, Slot.B, releases[1].name, pid=0, process_started=1)  # it has crashed
        stop_slot(project, Slot.B, at_once=at_once)
        assert read_state(ServerFiles.of(project, Slot.B)) is None
        assert addresses(project, "triton_grpc_b") == []
        assert division(project) == TrafficSplit(Slot.A, 0)  # whoever is next has nobody's users
    assert slot_servers.server_in_slot(project, Slot.A) is not None


def test_a_rollback_to_what_is_warm(project: Project, releases: list[StoredRelease]) -> None:
    """Only routes change, forth and back; nothing is loaded."""
    serve(project, Slot.B, releases[1].name)
    make_stable(project, Slot.B)
    done = rollback(project, None, Silent())
    assert (done.release, done.previous) == (releases[0].name, releases[1].name)
    assert (done.restarted, done.abandoned, done.gap_seconds) == (None, 0, 0.0)
    assert stable_slot(project) is Slot.A
    assert division(project) == TrafficSplit(Slot.A, 0)
    state = read_state(ServerFiles.of(project))
    assert state is not None
    assert state.previous_release == ""  # a step back goes further back
    assert rollback(project, "2", Silent()).release == releases[1].name


def test_nothing_changes_in_place_during_a_rollout(
    project: Project, releases: list[StoredRelease]
) -> None:
    """Whoever judges the candidate compares it with what was stable at the start."""
    serve(project, Slot.B, releases[1].name)
    traffic(project).move(5)
    for act in (
        lambda: rollback(project, "2", Silent()),
        lambda: serve_release(project, "2", Silent()),
    ):
        with pytest.raises(ServerError, match="a rollout is in progress") as caught:
            act()
        assert "rollout abort" in caught.value.remedy


@pytest.mark.parametrize("judged", [True, False])
def test_up_leaves_nobody_with_a_release_that_nobody_judges(
    judged: bool, project: Project, releases: list[StoredRelease]
) -> None:
    """The gateway outlived the controller: back to stable, unless a controller runs."""
    traffic(project).move(25)
    _, rendered = rendered_release(project, releases[0])
    settings, models = lifecycle.settings_fingerprint(project), rendered.plan.model_names
    serve(project, Slot.A, releases[0].name, settings=settings, models=models)
    lock = controller_lock(project)
    lock.parent.mkdir(parents=True, exist_ok=True)
    with try_exclusive(lock if judged else lock.with_name("another")) as free:
        assert free
        _, started, _ = serve_release(project, "1", Silent())
    assert not started
    assert division(project) == TrafficSplit(Slot.A, 25 if judged else 0)


def test_a_gateway_for_all(built: Sandbox) -> None:
    """Triton's known holes are behind it: loopback, unless somebody takes the risk."""
    built.data["rollout"] = {"user_header": "x-user-id"}
    built.data["gateway"] = {"address": "0.0.0.0"}  # noqa: S104 - what is refused
    built.write()
    with pytest.raises(ConfigurationError, match=r"gateway\.address: 0\.0\.0\.0") as caught:
        gateway.refuse_exposed_gateway(built.load())
    assert "accept_known_holes" in caught.value.remedy
    built.data["server"] = {"accept_known_holes": True}
    built.write()
    gateway.refuse_exposed_gateway(built.load())


def test_only_a_project_with_users_has_a_gateway(built: Sandbox) -> None:
    """Nothing changes for anybody else."""
    assert not gateway.has_gateway(built.load())
    assert "rollout" not in lifecycle.settings_fingerprint(built.load())
    built.data["rollout"] = {"user_header": "x-user-id"}
    built.write()
    assert gateway.has_gateway(built.load())
    assert "rollout" in lifecycle.settings_fingerprint(built.load())


def test_status_and_logs_know_both(
    project: Project, releases: list[StoredRelease], cli: Cli
) -> None:
    """Who has how many users, where the gateway is; the other group's log by its own name."""
    models = ["speller"]
    serve(project, Slot.A, releases[0].name, models=models)
    serve(project, Slot.B, releases[1].name, models=models)
    traffic(project).move(25)
    done = cli("status", "--json")
    record = as_documented("status", done.stdout)
    assert done.returncode == 7  # no Triton answers
    assert (record["gateway"]["url"], record["gateway"]["ready"]) == ("127.0.0.1:8080", False)
    beside = record["standby"]
    assert (beside["slot"], beside["release"], beside["share_percent"]) == (
        "b",
        releases[1].name,
        25,
    )
    printed = cli("status").stdout
    assert f"{releases[1].name} in slot b: 25 % of the traffic, NOT READY" in printed
    log = ServerFiles.of(project, Slot.B).log
    log.write_text("of the candidate\n", encoding="utf-8")
    assert "of the candidate" in cli("logs", "candidate").stdout
    missing = cli("logs", "gateway")
    assert missing.returncode == 7
    assert "no gateway log yet" in missing.stderr
