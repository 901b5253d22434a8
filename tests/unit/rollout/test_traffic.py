# SPDX-License-Identifier: Apache-2.0
"""The routes' file of a rollout: what is in it, what is refused, what a crash leaves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tritonctl.errors import ConfigurationError, HostError, ServerError
from tritonctl.gateway.placement import EnvoyUpstream, GatewayPlacement, SlotGroups
from tritonctl.gateway.shares import ROLLBACK_ROUTES, ROUTES, TrafficSplit, read_split
from tritonctl.project.rollout import Rollout
from tritonctl.project.server import Gateway
from tritonctl.protocol.metrics import Metrics
from tritonctl.releases.slots import Slot
from tritonctl.rollout import host_environment
from tritonctl.rollout.host_environment import HostService
from tritonctl.rollout.traffic import Traffic
from tritonctl.runtimes import slot_servers

ROLLOUT = Rollout(user_header="x-user-id")
PLACEMENT = GatewayPlacement(
    upstreams=(EnvoyUpstream("127.0.0.1", 9001, 9000),),
    address="127.0.0.1",
    port=8080,
    admin_address="127.0.0.1",
    admin_port=8081,
    secrets={},
    frontend=("127.0.0.1", 9004),
    slots=SlotGroups(Slot.A, "/etc/envoy/routes/routes.json", "/etc/envoy/endpoints"),
)
PROMOTED = replace(PLACEMENT, slots=SlotGroups(Slot.B, "/etc/envoy/routes/routes.json"))


def traffic(
    folder: Path,
    placement: GatewayPlacement = PLACEMENT,
    settings: Rollout = ROLLOUT,
    **gateway: Any,
) -> Traffic:
    """Of a gateway with these settings."""
    return Traffic(folder, Gateway.model_validate(gateway), placement, settings)


def routes(folder: Path) -> list[dict[str, Any]]:
    """As Envoy reads them."""
    (resource,) = json.loads((folder / ROUTES).read_text())["resources"]
    (host,) = resource["virtual_hosts"]
    found: list[dict[str, Any]] = host["routes"]
    return found


def by_user(folder: Path) -> list[dict[str, Any]]:
    """What is done with requests that say whose they are."""
    return [
        route["route"] for route in routes(folder) if "weighted_clusters" in route.get("route", {})
    ]


@pytest.mark.parametrize(
    ("share", "weights"),
    [
        (0.00001, [999_999, 1]),
        (1, [990_000, 10_000]),
        (33.3, [667_000, 333_000]),
        (100, [0, 1_000_000]),
    ],
)
def test_the_candidate_has_the_upper_end(share: float, weights: list[int], tmp_path: Path) -> None:
    """Stable first and the same total always: a hash that is the candidate's stays so."""
    traffic(tmp_path).move(share)
    found = by_user(tmp_path)
    assert found
    for route in found:
        split = route["weighted_clusters"]
        assert [cluster["weight"] for cluster in split["clusters"]] == weights
        stable, first = (cluster["name"] for cluster in split["clusters"])
        assert stable.endswith("_a")
        assert first == f"{stable.removesuffix('_a')}_b_first"
        assert split["use_hash_policy"] is True
        assert route["hash_policy"] == [{"header": {"header_name": "x-user-id"}}]
        assert "cluster" not in route


def test_each_route_is_asked_for_in_four_ways(tmp_path: Path) -> None:
    """By a tester, by a user, and else; all the rest of it is the same."""
    traffic(tmp_path).move(5)
    infer = [r for r in routes(tmp_path) if r["match"].get("path", "").endswith("/ModelInfer")]
    headers = [route["match"].pop("headers", None) for route in infer]
    assert headers == [
        [{"name": "x-tritonctl-release", "string_match": {"exact": "candidate"}}],
        [{"name": "x-tritonctl-release", "string_match": {"exact": "stable"}}],
        [{"name": "x-user-id", "string_match": {"safe_regex": {"regex": ".+"}}}],
        None,
    ]
    assert [route["route"].get("cluster") for route in infer] == [
        "triton_grpc_b",
        "triton_grpc_a",
        None,
        "triton_grpc_a",
    ]
    assert all(route["match"] == infer[-1]["match"] for route in infer)
    assert {route["route"]["timeout"] for route in infer} == {"0s"}


@pytest.mark.parametrize("frontend", [None, ("127.0.0.1", 9004)])
def test_a_frontend_is_split_where_there_is_one(
    frontend: tuple[str, int] | None, tmp_path: Path
) -> None:
    """Each slot has one, or neither."""
    traffic(tmp_path, replace(PLACEMENT, frontend=frontend)).move(5)
    found = [
        cluster["name"]
        for route in by_user(tmp_path)
        for cluster in route["weighted_clusters"]["clusters"]
        if cluster["name"].startswith("frontend")
    ]
    assert {*found} == (set() if frontend is None else {"frontend_a", "frontend_b_first"})


@pytest.mark.parametrize("retries", [0, 3])
def test_a_request_that_was_not_begun_goes_to_stable(retries: int, tmp_path: Path) -> None:
    """Whatever the project says about retries."""
    traffic(tmp_path, retries=retries).move(5)
    for route in by_user(tmp_path):
        policy = route["retry_policy"]
        assert policy["num_retries"] == max(1, retries)
        assert {"connect-failure", "refused-stream"} <= set(policy["retry_on"].split(","))
        assert policy["retry_priority"]["name"].endswith("previous_priorities")


def test_steps_and_back(tmp_path: Path) -> None:
    """The file is the state; a new controller reads it, and goes on or back from there."""
    traffic(tmp_path).write_initial_routes()
    assert traffic(tmp_path).share() == 0
    assert by_user(tmp_path) == []
    for share in (1, 5, 5, 12.5):  # the same again, after a crash
        traffic(tmp_path).move(share)
        assert traffic(tmp_path).share() == share
    traffic(tmp_path).write_initial_routes()  # Envoy is started again
    assert traffic(tmp_path).share() == 12.5
    for _ in range(2):
        traffic(tmp_path).roll_back()
        assert traffic(tmp_path).share() == 0
        assert by_user(tmp_path) == []
    assert [file.name for file in tmp_path.iterdir()] == [ROUTES]


def test_the_slots_change_places(tmp_path: Path) -> None:
    """What was written before a promotion leads nobody back to the release before it."""
    traffic(tmp_path).move(100)
    after = traffic(tmp_path, PROMOTED)
    assert after.share() == 0
    after.roll_back()
    assert read_split(tmp_path / ROUTES) == TrafficSplit(Slot.B, 0)
    after.move(5)
    assert after.share() == 5
    for route in by_user(tmp_path):
        stable, first = (each["name"] for each in route["weighted_clusters"]["clusters"])
        assert (stable[-2:], first[-8:]) == ("_b", "_a_first")


def test_a_promotion_that_was_cut_short_is_mended(tmp_path: Path) -> None:
    """The routes still lead to the slot that is not stable any more."""
    traffic(tmp_path).move(100)
    traffic(tmp_path, PROMOTED).write_initial_routes()
    assert read_split(tmp_path / ROUTES) == TrafficSplit(Slot.B, 0)
    assert read_split(tmp_path / ROLLBACK_ROUTES) == TrafficSplit(Slot.A, 0)
    traffic(tmp_path, PROMOTED).move(1)
    assert read_split(tmp_path / ROLLBACK_ROUTES) == TrafficSplit(Slot.B, 0)


def test_a_rollback_needs_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It renames a file that a step left there: nothing is written."""

    def full(*_: object) -> None:
        raise AssertionError("written")

    steps = traffic(tmp_path)
    steps.move(5)
    monkeypatch.setattr("tritonctl.rollout.traffic.write_atomically", full)
    steps.roll_back()
    assert steps.share() == 0


@pytest.mark.parametrize("share", [-1, 0, 4.9, 100.1, float("nan")])
def test_a_share_only_grows(share: float, tmp_path: Path) -> None:
    """And nothing is written else."""
    steps = traffic(tmp_path)
    steps.move(5)
    before = steps.file.read_bytes()
    with pytest.raises(ConfigurationError, match=r"rollout\.steps") as caught:
        steps.move(share)
    assert "roll back" in caught.value.remedy
    assert steps.file.read_bytes() == before


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}"]
    + [f'{{"version_info": {one}}}' for one in ('"x"', "[]", '"c 5"', '"a x"')],
)
def test_a_file_of_somebody_else(text: str, tmp_path: Path) -> None:
    """No step is taken from it; a rollback works."""
    steps = traffic(tmp_path)
    steps.file.write_text(text)
    with pytest.raises(HostError, match="not a file of routes that tritonctl wrote"):
        steps.move(5)
    steps.roll_back()
    assert steps.share() == 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, r"rollout\.user_header is missing"),
        ({"user_header": "x-tritonctl-release"}, r"rollout\.release_header: .* already"),
    ],
)
def test_who_is_a_user(settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    """Said before anybody is moved."""
    with pytest.raises(ConfigurationError, match=said):
        traffic(tmp_path, settings=Rollout.model_validate(settings))
    assert list(tmp_path.iterdir()) == []


def test_an_envoy_that_cannot_move_anybody(tmp_path: Path) -> None:
    """Its configuration was made for one group of servers."""
    with pytest.raises(ConfigurationError, match="one server group"):
        traffic(tmp_path, replace(PLACEMENT, slots=None))


@pytest.mark.parametrize(
    "settings",
    [
        {"steps": [5, 5, 100]},
        {"steps": [50, 25, 100]},
        {"steps": [0, 100]},
        {"steps": [1, 50]},
        {"steps": []},
        {"user_header": "X-User"},
        {"user_header": ":path"},
        {"user_header": "x-user\r\nx-other"},
        {"user_header": ""},
        {"release_header": "a" * 65},
    ],
    ids=str,
)
def test_settings_that_the_project_file_refuses(settings: dict[str, Any]) -> None:
    """Steps that do not rise to 100, names that are no header's."""
    with pytest.raises(ValidationError):
        Rollout.model_validate(settings)


SHADOWED = replace(PLACEMENT, shadow="/p/.tritonctl/shadow/copies.sock")


def copied(folder: Path) -> dict[str, int]:
    """Of a million, the requests that are copied, by what they ask; the others' are left out."""
    found = {}
    for route in routes(folder):
        for policy in route.get("route", {}).get("request_mirror_policies", ()):
            assert policy["cluster"] == "shadow"
            match = route["match"]
            name = match.get("path") or match.get("prefix") or match["safe_regex"]["regex"]
            found[name.rpartition("/")[2] or name] = policy["runtime_fraction"]["default_value"][
                "numerator"
            ]
    return found


def test_a_share_of_the_questions_is_copied(tmp_path: Path) -> None:
    """From `mirror` on, before anybody is moved; a rollback ends it. No metadata, no health."""
    made = traffic(tmp_path, SHADOWED, ROLLOUT.model_copy(update={"shadow": 0.05}))
    made.write_initial_routes()
    assert copied(tmp_path) == {}
    made.start_mirroring()
    assert made.share() == 0
    whole = copied(tmp_path)
    assert {"ModelInfer", "ModelStreamInfer", "/v1/"} <= whole.keys()
    assert set(whole.values()) == {50_000}
    assert not {"ModelReady", "ModelMetadata", "ServerReady", "Check"} & whole.keys()
    made.move(5)
    assert copied(tmp_path) == whole
    made.start_mirroring()
    assert (made.share(), copied(tmp_path)) == (5, whole)
    made.roll_back()
    assert copied(tmp_path) == {}


@pytest.mark.parametrize(("placement", "shadow"), [(SHADOWED, 0.0), (PLACEMENT, 0.5)])
def test_nothing_is_copied_where_nobody_takes_it(
    placement: GatewayPlacement, shadow: float, tmp_path: Path
) -> None:
    """No share, or no socket."""
    made = traffic(tmp_path, placement, ROLLOUT.model_copy(update={"shadow": shadow}))
    made.start_mirroring()
    made.move(5)
    assert copied(tmp_path) == {}


def test_a_move_is_confirmed_by_what_the_gateway_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never by absence: silent before the change, restarted with the old file, or late."""
    moved = traffic(tmp_path)
    moved.write_initial_routes()
    service = HostService.__new__(HostService)  # its routes and its gateway are this test's
    service._project = None  # type: ignore[assignment]
    served: list[str | None] = [None]

    def scrape(url: str, _: float) -> Metrics:
        assert "text_readouts" in url
        if served[0] is None:
            raise ServerError("no answer", remedy="wait")
        return Metrics.parse(f'envoy_http_rds_version_text{{text_value="{served[0]}"}} 0\n')

    monkeypatch.setattr(host_environment, "scrape", scrape)
    monkeypatch.setattr(slot_servers, "envoy_metrics_url", lambda _: "http://e/s")
    monkeypatch.setattr(service, "_traffic", lambda: moved)
    service.move(5)
    assert not service.read_by_gateway(0.0)
    served[0] = "a 0"
    assert not service.read_by_gateway(0.0)
    served[0] = moved.written_version()
    assert service.read_by_gateway(0.0)
    service.roll_back()
    assert not service.read_by_gateway(0.0)
    service.roll_back()
    served[0] = moved.written_version()
    assert service.read_by_gateway(0.0)
    moved.file.write_text("{}")  # by another hand: nothing that could be confirmed
    assert not service.read_by_gateway(0.0)
