# SPDX-License-Identifier: Apache-2.0
"""The report that is sent to somebody: everything needed is in it, no secret is."""

from __future__ import annotations

import json
import tarfile
from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tritonctl.doctor.bundle import write_bundle
from tritonctl.doctor.findings import DoctorFinding, DoctorReport
from tritonctl.errors import HostError
from tritonctl.host.progress import Silent
from tritonctl.host.redaction import REMOVED, Redaction
from tritonctl.repository.publish import render

if TYPE_CHECKING:
    from tests.unit.conftest import Cli, Sandbox

# Made up, each in the form of its kind.
IN_ENVIRONMENT = "correct horse battery staple"
IN_PATH = "hf_QwErTyUiOpAsDfGhJkLzXcVbNm12345678"
IN_LOG = "sk-proj-9f8e7d6c5b4a39281706"
IN_KEY_FILE = "tenant one's key"
TOKEN = "restricted-protocols-4711"  # noqa: S105 - a made-up one
IN_URL = "s3cr3t-of-a-proxy"
SECRETS = (IN_ENVIRONMENT, IN_PATH, IN_LOG, IN_KEY_FILE, TOKEN, IN_URL)


def contents(bundle: Path) -> dict[str, str]:
    """The files of a report by name."""
    with tarfile.open(bundle) as tar:
        members = tar.getmembers()
        read = {m.name: tar.extractfile(m) for m in members}
        return {
            n.removeprefix("tritonctl-report/"): f.read().decode() for n, f in read.items() if f
        }


def plant(sandbox: Sandbox) -> None:
    """Secrets wherever users have them."""
    folder = sandbox.root / IN_PATH
    folder.mkdir()
    (folder / "key").write_text(f"{IN_KEY_FILE}\n", encoding="utf-8")
    tenant = {"api_key_file": f"{IN_PATH}/key"}
    sandbox.data["gateway"] = {"tenants": {"one": tenant}}
    server = sandbox.root / ".tritonctl" / "server"
    server.mkdir(parents=True)
    log = (
        f"I1122 started\nAuthorization: Bearer {IN_LOG}\nkey {IN_KEY_FILE} {IN_ENVIRONMENT}\nlast\n"
    )
    (server / "triton.log").write_text(log, encoding="utf-8")
    state = {
        "pid": 1,
        "process_started": 1,
        "address": "127.0.0.1",
        "grpc_port": 1,
        "http_port": 2,
        "metrics_port": 3,
        "repository": "r",
        "models": ["speller"],
        "settings": "{}",
        "shm_prefix": "p",
        "exit_timeout_seconds": 1,
        "token": TOKEN,
    }
    (server / "state.json").write_text(json.dumps(state), encoding="utf-8")
    argv = ["tritonserver", f"--grpc-restricted-protocol=trace:admin-key={TOKEN}"]
    specification = {"argv": argv, "environment": {"MY_PASSWORD": IN_ENVIRONMENT}}
    (server / "supervisor.json").write_text(json.dumps(specification), encoding="utf-8")


def test_no_secret_is_in_a_report(
    built: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In the environment, a path, a log, a key file, the state, a URL; as they are and encoded."""
    plant(built)
    monkeypatch.setenv("SOME_API_KEY", IN_ENVIRONMENT)
    project = built.load()
    render(project, Silent())
    seen = DoctorFinding("proxy", "ok", f"https://user:{IN_URL}@proxy.example:3128")
    bundle = tmp_path / "report.tar.gz"
    names = write_bundle(bundle, DoctorReport([seen]), project)
    files = contents(bundle)
    everything = "\n".join([*files, *files.values()])
    for secret in SECRETS:
        assert secret not in everything
        assert b64encode(secret.encode()).decode() not in everything
    assert sorted(names) == sorted(files)
    assert files["server/triton.log"].startswith("I1122 started\n")
    assert files["server/triton.log"].endswith("last")
    assert json.loads(files["report.json"])["healthy"] is True
    assert "tritonctl" in json.loads(files["versions.json"])
    assert f"api_key_file: {REMOVED}/key" in files["project/tritonctl.yaml"]
    assert any(name.startswith("engines/speller/") for name in files)
    assert 'key: "max_seq_len"' in files["model_repository/speller_engine.pbtxt"]
    assert not [name for name in files if "safetensors" in name]
    assert bundle.stat().st_mode & 0o777 == 0o600


def test_secrets_that_nobody_told_us_of() -> None:
    """By the word before them or by their looks; what is none stays."""
    clean = Redaction()
    assert clean('password: "a b c"') == f"password: {REMOVED}"
    assert clean("https://me:pass@host/x") == f"https://{REMOVED}@host/x"
    assert clean("x-api-key=abcd, other") == f"x-api-key={REMOVED}, other"
    assert "MIIE" not in clean("-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----")
    assert clean("id AKIAABCDEFGHIJKLMNOP.") == f"id {REMOVED}."
    assert clean("Ab1" * 12) == REMOVED
    harmless = f"max_tokens: 24, /opt/models/llama-3-8b, sha256 {'0123456789abcdef' * 4}"
    assert clean(harmless) == harmless


def test_the_command_writes_one(cli: Cli, sandbox: Sandbox) -> None:
    """Beside the verdict; a folder that is not there is told with exit code 4."""
    done = cli("doctor", "--bundle", "report.tar.gz", "--json")
    assert "healthy" in json.loads(done.stdout)
    assert "project/tritonctl.yaml" in contents(sandbox.root / "report.tar.gz")
    failed = cli("doctor", "--bundle", "nowhere/report.tar.gz")
    assert failed.returncode == 4
    assert "nowhere" in failed.stderr


def test_a_full_disk_leaves_no_half_report(built: Sandbox, small_disk: Path) -> None:
    """The old report stays, the error names the place."""
    target = small_disk / "report.tar.gz"
    target.write_bytes(b"before")
    (small_disk / "filler").write_bytes(b"x" * ((2 << 20) - 8192))
    log = built.root / ".tritonctl" / "server" / "triton.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    # Digits of many digests do not compress.
    log.write_text("\n".join(f"{hash((n, 'x')):x}" * 20 for n in range(2000)), encoding="utf-8")
    with pytest.raises(HostError, match="no space left"):
        write_bundle(target, DoctorReport([]), built.load())
    assert target.read_bytes() == b"before"
    assert sorted(p.name for p in small_disk.iterdir()) == ["filler", "report.tar.gz"]
