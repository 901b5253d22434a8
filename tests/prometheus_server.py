# SPDX-License-Identifier: Apache-2.0
"""A Prometheus of our own, on rendered files and a free port of loopback."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tritonctl.runtimes.ports import reserved_ports

PATIENCE_SECONDS = 60.0
CONFIGURATION = "prometheus/prometheus.yml"


class Prometheus:
    """One that runs."""

    def __init__(self, url: str) -> None:
        self._url = url

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The result of an instant query; an error of its parser is an AssertionError."""
        result: list[dict[str, Any]] = self._get("query", query=expression)["result"]
        return result

    def value(self, expression: str) -> float:
        """Of the only series."""
        [series] = self.query(expression)
        return float(series["value"][1])

    def query_range(
        self, expression: str, start: float, end: float, step: float
    ) -> list[dict[str, Any]]:
        """The result over a time."""
        times = {"start": start, "end": end, "step": step}
        result: list[dict[str, Any]] = self._get("query_range", query=expression, **times)["result"]
        return result

    def rules(self) -> list[dict[str, Any]]:
        """Every recording and alert rule, with name and health."""
        groups = self._get("rules")["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def ready(self) -> bool:
        """Whether it answers."""
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=5) as answer:  # noqa: S310 - ours
                return bool(answer.status == 200)
        except OSError:
            return False

    def _get(self, kind: str, **parameters: Any) -> Any:
        address = f"{self._url}/api/v1/{kind}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(address, timeout=PATIENCE_SECONDS) as answer:  # noqa: S310
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error


def installed() -> bool:
    """Whether there is one to start."""
    return shutil.which("prometheus") is not None


@contextmanager
def prometheus(folder: Path, files: Mapping[str, str], seconds: int = 1) -> Iterator[Prometheus]:
    """Run it on `observability_files`, scraping and evaluating every so many seconds."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    _hasten(folder / CONFIGURATION, seconds)
    with reserved_ports("127.0.0.1", {"port": 0}) as (port,):
        yield from _serving(folder, f"127.0.0.1:{port}")


def _serving(folder: Path, address: str) -> Iterator[Prometheus]:
    command = [shutil.which("prometheus") or "prometheus"]
    command += [f"--config.file={folder / CONFIGURATION}", f"--web.listen-address={address}"]
    command.append(f"--storage.tsdb.path={folder / 'data'}")
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        server = Prometheus(f"http://{address}")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not server.ready():
            assert process.poll() is None, (folder / "prometheus.log").read_text()
            assert time.monotonic() < deadline, "Prometheus does not become ready"
            time.sleep(0.1)
        yield server
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)


def _hasten(file: Path, seconds: int) -> None:
    configuration = yaml.safe_load(file.read_text(encoding="utf-8"))
    for name in ("scrape_interval", "evaluation_interval"):
        configuration["global"][name] = f"{seconds}s"
    configuration["global"]["scrape_timeout"] = f"{seconds}s"
    file.write_text(yaml.safe_dump(configuration), encoding="utf-8")
