# SPDX-License-Identifier: Apache-2.0
"""Reads the Prometheus metrics of a server."""

from __future__ import annotations

import http.client
import urllib.error
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from tritonctl.errors import ServerError
from tritonctl.protocol.http import open_url

# Of a server as a whole, by each of its models (python_backends/textlib/server_memory.py).
RESIDENT = "tritonctl_server_resident_bytes"
_PROBE_SECONDS = 5.0
_LARGEST = ("nv_cpu_", "nv_gpu_", RESIDENT)  # of hosts, which several pods may see; of a server
_METRICS_PORT = (
    "name the port of the metrics, 8002 unless set otherwise; `tritonctl status` shows the "
    "project's"
)


@dataclass(frozen=True)
class Sample:
    """One value of one time series."""

    name: str
    labels: Mapping[str, str]
    value: float


class Metrics:
    """A scrape."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._samples = tuple(samples)

    def __iter__(self) -> Iterator[Sample]:
        return iter(self._samples)

    @classmethod
    def parse(cls, text: str) -> Metrics:
        """Parse Prometheus' text format; raises ValueError."""
        return cls(
            Sample(sample.name, sample.labels, sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        )

    def samples(self, name: str, **labels: str) -> list[Sample]:
        """Every series of that name with these labels."""
        # The parser appends `_total` to counters that lack it, Triton's own among them.
        names = (name, f"{name}_total")
        return [
            sample
            for sample in self._samples
            if sample.name in names and labels.items() <= sample.labels.items()
        ]

    def total(self, name: str, **labels: str) -> float:
        """The sum of `samples`, over the instances of a model for example; 0 without any."""
        return sum(sample.value for sample in self.samples(name, **labels))


def added(scrapes: Iterable[Metrics]) -> Metrics:
    """One scrape with the sums of the same series of several; the fullest host, GPU and server."""
    sums: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for metrics in scrapes:
        for sample in metrics:
            key = (sample.name, frozenset(sample.labels.items()))
            if sample.name.startswith(_LARGEST):
                sums[key] = max(sums.get(key, 0.0), sample.value)
            else:
                sums[key] = sums.get(key, 0.0) + sample.value
    return Metrics(Sample(name, dict(labels), value) for (name, labels), value in sums.items())


def scrape(url: str, seconds: float = _PROBE_SECONDS) -> Metrics:
    """The metrics at `url` now. Raises ServerError when they cannot be read in this time."""
    try:
        with open_url(url, seconds) as answer:
            return Metrics.parse(answer.read().decode())
    except http.client.BadStatusLine as error:
        raise ServerError(
            f"{url} does not speak HTTP, as Triton's gRPC port does not",
            remedy=_METRICS_PORT,
        ) from error
    except urllib.error.HTTPError as error:
        error.close()
        raise ServerError(
            f"no metrics at {url}: it answers {error.code} {error.reason}, as Triton's HTTP port "
            "does",
            remedy=_METRICS_PORT,
        ) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ServerError(
            f"no metrics from {url}: {error}",
            remedy="check that the server runs with `tritonctl status`",
        ) from error
