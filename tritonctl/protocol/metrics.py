# SPDX-License-Identifier: Apache-2.0
"""Read a server's Prometheus metrics."""

from __future__ import annotations

import http.client
import urllib.error
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from tritonctl.errors import ServerError
from tritonctl.protocol.http import open_url

# Whole-server value that each model reports (python_backends/textlib/triton/server_memory.py).
RESIDENT = "tritonctl_server_resident_bytes"
_PROBE_SECONDS = 5.0
_LARGEST = (
    "nv_cpu_",
    "nv_gpu_",
    RESIDENT,
)  # host metrics, which several pods may share; server metrics
_METRICS_PORT = (
    "name the port of the metrics, 8002 unless set otherwise; `tritonctl status` shows the "
    "project's"
)


@dataclass(frozen=True)
class MetricSample:
    """One value of one time series."""

    name: str
    labels: Mapping[str, str]
    value: float


class Metrics:
    """The samples of one scrape."""

    def __init__(self, samples: Iterable[MetricSample]) -> None:
        self._samples = tuple(samples)

    def __iter__(self) -> Iterator[MetricSample]:
        return iter(self._samples)

    @classmethod
    def parse(cls, text: str) -> Metrics:
        """Parse Prometheus' text format; raises ValueError."""
        return cls(
            MetricSample(sample.name, sample.labels, sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        )

    def samples(self, name: str, **labels: str) -> list[MetricSample]:
        """Return all samples with this name and these labels."""
        # The parser appends `_total` to counters without it, such as Triton's.
        names = (name, f"{name}_total")
        return [
            sample
            for sample in self._samples
            if sample.name in names and labels.items() <= sample.labels.items()
        ]

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of `samples`, for example over a model's instances; 0 without any."""
        return sum(sample.value for sample in self.samples(name, **labels))


def merge_scrapes(scrapes: Iterable[Metrics]) -> Metrics:
    """Sum each series over several scrapes; host, GPU and server metrics take the maximum."""
    sums: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for metrics in scrapes:
        for sample in metrics:
            key = (sample.name, frozenset(sample.labels.items()))
            if sample.name.startswith(_LARGEST):
                sums[key] = max(sums.get(key, 0.0), sample.value)
            else:
                sums[key] = sums.get(key, 0.0) + sample.value
    return Metrics(
        MetricSample(name, dict(labels), value) for (name, labels), value in sums.items()
    )


def scrape(url: str, seconds: float = _PROBE_SECONDS) -> Metrics:
    """Read the metrics at `url`. Raises ServerError if that fails or takes too long."""
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
