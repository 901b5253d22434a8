# SPDX-License-Identifier: Apache-2.0
"""/metrics behind a key, and what reads it with that key."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.frontend.conftest import served
from tritonctl.doctor.bundle import _redaction
from tritonctl.frontend.budgets.keys import RELOAD_SECONDS, KeyFile
from tritonctl.frontend.config import METRICS_KEY, FrontendConfig
from tritonctl.monitoring.prometheus import FRONTEND_KEY, prometheus_configuration
from tritonctl.project.file import load_project
from tritonctl.security.certificate_checks import exposed_keys

SECRET = b"s3cret"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    """A file with the key."""
    file = tmp_path / "metrics.key"
    file.write_bytes(SECRET + b"\n")
    return file


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer other"}, 401),
        ({"authorization": "Bearer s3cret"}, 200),
        ({"x-api-key": "s3cret"}, 200),
        ({"authorization": "Basic s3cret"}, 401),
    ],
)
def test_metrics_need_the_key(key_file: Path, headers: dict[str, str], status: int) -> None:
    """Without it nothing of them is said; health checks need none."""
    with served(metrics_key_file=key_file) as frontend:
        response = frontend.http.get("/metrics", headers=headers)
        assert response.status_code == status
        if status == 401:
            assert frontend.error(response)["code"] == "invalid_api_key"
            assert b"tritonctl_frontend" not in response.content
        assert frontend.http.get("/health/live").status_code == 200


def test_without_the_setting_they_are_open() -> None:
    """As before."""
    with served() as frontend:
        assert frontend.http.get("/metrics").status_code == 200


def test_a_file_without_a_key_opens_nothing(
    key_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is refused and logged once; a new key counts within seconds."""
    now = [0.0]
    key = KeyFile(key_file, clock=lambda: now[0])
    headers = [(b"authorization", b"Bearer " + SECRET)]
    assert key.is_in(headers)
    key_file.write_text("")
    for _ in range(3):
        now[0] += RELOAD_SECONDS
        assert not key.is_in(headers)
        assert not key.is_in([(b"x-api-key", b"")])
    assert caplog.text.count("contains no key") == 1
    key_file.write_text("new")
    now[0] += RELOAD_SECONDS
    assert key.is_in([(b"x-api-key", b"new")])


def test_prometheus_sends_the_key(key_file: Path) -> None:
    """Its configuration names the container's secret, whose path the frontend has, too."""
    file = key_file.parent / "tritonctl.yaml"
    file.write_text("schema: tritonctl/v1\nfrontend: {metrics_key_file: metrics.key}\nmodels: {}\n")
    project = load_project(file)
    config = FrontendConfig.of(project, ["127.0.0.1:1"])
    assert config.settings.metrics_key_file == key_file
    assert FRONTEND_KEY == METRICS_KEY
    inside = FrontendConfig.of(project, ["127.0.0.1:1"], folder=Path("/run/secrets"))
    jobs = {job["job_name"]: job for job in prometheus_configuration(project)["scrape_configs"]}
    credentials = jobs["frontend"]["authorization"]["credentials_file"]
    assert credentials == str(inside.settings.metrics_key_file)


def test_keys_and_passwords_of_the_frontend_are_secrets(key_file: Path) -> None:
    """The doctor's bundle has them redacted, and a file that everyone may read is reported."""
    file = key_file.parent / "tritonctl.yaml"
    (key_file.parent / "redis.password").write_text("pa55word")
    ledger = "{redis: 'redis://127.0.0.1', password_file: redis.password}"
    file.write_text(
        "schema: tritonctl/v1\nmodels: {}\n"
        f"frontend: {{metrics_key_file: metrics.key, ledger: {ledger}}}\n"
    )
    project = load_project(file)
    for secret in key_file.parent.glob("*.*"):
        secret.chmod(0o644)
    warnings = exposed_keys(project)
    assert [warning.partition(":")[0] for warning in warnings] == [
        "frontend.metrics_key_file",
        "frontend.ledger.password_file",
    ]
    redaction = _redaction(project, {})
    assert "s3cret" not in redaction("the key s3cret")
    assert "pa55word" not in redaction("the password pa55word")
