# SPDX-License-Identifier: Apache-2.0
"""`tritonctl deploy kubernetes`: what it writes, what it refuses; Helm is asked elsewhere."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.json_page import as_documented
from tests.unit.conftest import Cli, Sandbox, dict_at
from tests.unit.releases.releasing import released_once, releases, uncompiled
from tritonctl.errors import ConfigurationError, UsageError
from tritonctl.releases.store import StoredRelease, stored_releases
from tritonctl.runtimes.kubernetes.chart import installation_name, render_chart
from tritonctl.runtimes.kubernetes.manifests import NEWEST_KUBERNETES, minor_version, read_values

__all__ = ["released_once", "releases", "uncompiled"]  # fixtures

ROOT = Path(__file__).parents[4]
CHART = ROOT / "docker" / "chart"


def values_of(files: dict[str, str]) -> dict[str, Any]:
    """values.yaml as data."""
    values: dict[str, Any] = yaml.safe_load(files["values.yaml"])
    return values


def test_every_file_of_the_chart_s_folder_is_written(
    built: Sandbox, releases: list[StoredRelease]
) -> None:
    """A template that is forgotten in the list would be missing without a word."""
    files = [path for path in CHART.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    shipped = {path.relative_to(CHART).as_posix() for path in files}
    written = set(render_chart(built.load(), releases[-1]))
    kept = {name for name in shipped if not name.endswith(".j2")}
    assert kept <= written
    named = "".join((CHART / name).read_text(encoding="utf-8") for name in sorted(shipped))
    for name in written - kept - {"Chart.yaml", "values.yaml"}:
        assert name in named, "no template and no comment knows it"


def test_the_schema_has_every_value(built: Sandbox, releases: list[StoredRelease]) -> None:
    """And no other one: what is misspelt is refused at every level."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))

    def compare(shape: dict[str, Any], values: dict[str, Any], where: str) -> None:
        assert shape["additionalProperties"] is False, where
        assert set(shape["properties"]) - {"global"} == set(values), where
        for name, value in values.items():
            below = shape["properties"][name]
            if isinstance(value, dict) and "properties" in below:
                compare(below, value, f"{where}.{name}")

    compare(schema, values_of(render_chart(built.load(), releases[-1])), "values")


def test_a_release_is_named_with_the_digest_of_its_list(
    built: Sandbox, releases: list[StoredRelease]
) -> None:
    """Which has the digest of every file: so one line says all that is served."""
    for stored in releases:
        content = (stored.folder / "release.json").read_bytes()
        expected = f"{stored.name}@sha256:{hashlib.sha256(content).hexdigest()}"
        assert values_of(render_chart(built.load(), stored))["release"] == expected


def test_two_releases_differ_in_one_line(built: Sandbox, releases: list[StoredRelease]) -> None:
    """Of the whole chart, where they need the same packages and memory."""
    first, second = (render_chart(built.load(), stored) for stored in releases)
    assert [name for name in first if first[name] != second[name]] == ["values.yaml"]
    lines = zip(*(each["values.yaml"].splitlines() for each in (first, second)), strict=True)
    assert [a.partition(":")[0] for a, b in lines if a != b] == ["release"]


def test_the_images_are_those_of_compose(
    built: Sandbox, releases: list[StoredRelease], cli: Cli
) -> None:
    """One `docker compose build` makes them all."""
    built.data |= {"gateway": {}, "frontend": {}}
    built.write()
    assert cli("deploy", "compose", "--release", "latest", "--quiet").returncode == 0
    compose = yaml.safe_load((built.root / "deploy" / "compose.yaml").read_text(encoding="utf-8"))
    images = values_of(render_chart(built.load(), releases[-1]))["images"]
    services = {"triton": "triton", "gateway": "envoy", "frontend": "frontend"}
    for name, service in services.items():
        assert images[name] == compose["services"][service]["image"], name


def test_an_image_of_the_user_s_own(built: Sandbox, releases: list[StoredRelease]) -> None:
    """It may have no process 1 of ours: Triton says itself whether it is ready."""
    built.data["docker"] = {"image": "registry.example/triton@sha256:" + "0" * 64}
    files = render_chart(built.load(), releases[-1])
    values = values_of(files)
    assert values["images"]["triton"].startswith("registry.example/")
    assert values["triton"]["readinessPort"] == 8000
    assert "port_value: 8003" not in files["files/envoy.yaml"]


def test_settings_of_the_project_become_values(
    built: Sandbox, releases: list[StoredRelease]
) -> None:
    """Ports, times, replicas, memory; traces leave the pod, so they may."""
    built.data["server"] |= {
        "exit_timeout_seconds": 77,
        "ready_timeout_seconds": 600,
        "tracing": {"endpoint": "http://collector:4318/v1/traces"},
    }
    built.data |= {"docker": {"replicas": 3, "memory": "8GiB"}, "gateway": {"port": 8443}}
    values = values_of(render_chart(built.load(), releases[-1]))
    assert values["drain"]["streamsSeconds"] == 77
    assert (
        values["triton"] | {"replicas": 3, "memory": "8192Mi", "startupSeconds": 600}
        == (values["triton"])
    )
    assert values["gateway"]["port"] == 8443
    assert values["networkPolicy"]["egress"]


@pytest.mark.parametrize(("took", "allowed"), [(None, 120), (3.0, 120), (100.3, 502)])
def test_a_model_that_loads_slowly_has_the_time(
    built: Sandbox, releases: list[StoredRelease], took: float | None, allowed: int
) -> None:
    """Five times what it took where it was published, and never less than the project allows."""
    release = releases[-1].manifest()
    smoke = release.smoke.model_copy(update={"ready_seconds": took})
    slow = replace(releases[-1], record=release.model_copy(update={"smoke": smoke}))
    values = values_of(render_chart(built.load(), slow))
    assert values["triton"]["startupSeconds"] == allowed


def test_a_place_on_this_machine_is_refused(built: Sandbox, releases: list[StoredRelease]) -> None:
    """Pods have the release, not this disk."""
    manifest = releases[-1].folder / "release.json"
    record = json.loads(manifest.read_text(encoding="utf-8"))
    draft = {"speculative_config": {"speculative_model": "/drafts/eagle"}}
    dict_at(record, "project", "models", "speller", "engine", "options")["package"] = draft
    manifest.chmod(0o644)
    manifest.write_text(json.dumps(record), encoding="utf-8")
    [_, stored] = stored_releases(built.load())
    with pytest.raises(ConfigurationError, match="/drafts/eagle"):
        render_chart(built.load(), stored)


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("demo", "demo"),
        ("My_Models", "my-models"),
        ("7b", "triton-7b"),
        ("x" * 60, "x" * 40),
        ("...", "tritonctl"),
    ],
)
def test_what_helm_calls_it(tmp_path: Path, folder: str, name: str) -> None:
    """A name that Kubernetes takes, with room for what follows it."""
    found = installation_name(Sandbox(tmp_path / folder).load())
    assert found == name
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", found)


def test_the_command_writes_the_chart(
    built: Sandbox, releases: list[StoredRelease], cli: Cli
) -> None:
    """Once; again it has nothing to do."""
    done = cli("deploy", "kubernetes", "--json", "--quiet")
    assert done.returncode == 0, done.stderr
    record = as_documented("deploy kubernetes", done.stdout)
    assert record["release"] == releases[-1].name
    assert "values.yaml" in record["written"]
    again = json.loads(cli("deploy", "kubernetes", "--json", "--quiet").stdout)
    assert (again["written"], again["removed"]) == ([], [])
    older = json.loads(cli("deploy", "kubernetes", "--release", "1", "--json", "--quiet").stdout)
    assert older["written"] == ["values.yaml"]


def test_a_triton_with_known_holes(built: Sandbox, releases: list[StoredRelease], cli: Cli) -> None:
    """One line, unless the project accepts them: a cluster's other pods may reach the server."""
    told = " ".join(cli("deploy", "kubernetes").stderr.split())
    assert "the pods' Triton 2.51.0 has known vulnerabilities: CVE-" in told
    built.data["server"] |= {"accept_known_holes": True}
    built.write()
    assert "vulnerabilities" not in cli("deploy", "kubernetes").stderr


def test_a_chart_that_was_changed_by_hand(
    built: Sandbox, releases: list[StoredRelease], cli: Cli
) -> None:
    """Exit 3, and nothing is written; another file of the user's own does not matter."""
    assert cli("deploy", "kubernetes", "--quiet").returncode == 0
    values = built.root / "deploy" / "chart" / "values.yaml"
    (values.parent / "mine.yaml").write_text("triton: {replicas: 3}\n", encoding="utf-8")
    mine = values.read_text(encoding="utf-8").replace("replicas: 1", "replicas: 4")
    values.write_text(mine, encoding="utf-8")
    done = cli("deploy", "kubernetes", "--release", "1", "--quiet")
    assert done.returncode == 3
    told = " ".join(done.stderr.split())
    assert "edited since" in told
    assert "`tritonctl deploy kubernetes --force`" in told
    assert values.read_text(encoding="utf-8") == mine
    assert cli("deploy", "kubernetes", "--release", "1", "--force", "-q").returncode == 0
    assert (values.parent / "mine.yaml").exists()


def test_a_project_without_a_release(built: Sandbox, cli: Cli) -> None:
    """Exit 3, and the command that makes one."""
    done = cli("deploy", "kubernetes", "--quiet")
    assert done.returncode == 3
    assert "`tritonctl releases publish`" in done.stderr
    assert not (built.root / "deploy").exists()


def test_a_release_that_is_damaged(built: Sandbox, releases: list[StoredRelease], cli: Cli) -> None:
    """Exit 6: no pod would take it."""
    file = next((releases[-1].folder / "repository").rglob("*.bin"))
    file.chmod(0o644)
    file.write_bytes(b"other")
    done = cli("deploy", "kubernetes", "--quiet")
    assert done.returncode == 6
    assert "not as it was published" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--release", "9"], "no release `9`"),
        (["--kubernetes", "1.30"], "--values, --kubernetes and --apis require --manifests"),
        (["--values", "mine.yaml"], "--values, --kubernetes and --apis require --manifests"),
        (["--apis", "keda.sh/v1alpha1"], "--values, --kubernetes and --apis require --manifests"),
        (["--manifests", "--kubernetes", "1.19"], "for 1.20 and later"),
    ],
)
def test_usage(
    built: Sandbox, releases: list[StoredRelease], cli: Cli, arguments: list[str], said: str
) -> None:
    """Exit 2."""
    done = cli("deploy", "kubernetes", *arguments, "--quiet")
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())


def test_versions_of_kubernetes() -> None:
    """As people write them, and as `kubectl version` prints them."""
    assert minor_version(None) == NEWEST_KUBERNETES
    assert [minor_version(each) for each in ("1.31", "v1.31.4", "1.31.4+k3s1")] == ["1.31"] * 3
    for wrong in ("1.19", "2.0", "latest", "1.", "1.31x"):
        with pytest.raises(UsageError):
            minor_version(wrong)


@pytest.mark.parametrize("text", ["- a\n", "a: [", "text", "\0"])
def test_a_file_of_values_that_is_none(tmp_path: Path, text: str) -> None:
    """Exit 3, with its path."""
    file = tmp_path / "mine.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"mine\.yaml"):
        read_values(file)
    with pytest.raises(ConfigurationError, match="nowhere"):
        read_values(tmp_path / "nowhere.yaml")


def test_an_empty_file_of_values(tmp_path: Path) -> None:
    """Says nothing, which is allowed."""
    file = tmp_path / "mine.yaml"
    file.write_text("# nothing yet\n", encoding="utf-8")
    assert read_values(file) == {}
