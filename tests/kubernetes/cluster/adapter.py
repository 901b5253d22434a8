# SPDX-License-Identifier: Apache-2.0
"""Stands in for prometheus-adapter: custom metrics of pods, by its own rules, from a Prometheus.

adapter.py RULES PROMETHEUS CERTIFICATE KEY ADDRESS PORT. RULES are values of its chart, as
`files/prometheus-adapter.yaml`; what they ask is asked, nothing is made up.
"""

from __future__ import annotations

import json
import re
import ssl
import sys
import time
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

GROUP = "custom.metrics.k8s.io/v1beta1"
_METRIC = re.compile(rf"/apis/{re.escape(GROUP)}/namespaces/([^/]+)/pods/\*/([^/]+)")


class Adapter:
    """The metrics that rules know."""

    def __init__(self, rules: list[dict[str, Any]], prometheus: str) -> None:
        self._queries = {rule["name"]["as"]: rule["metricsQuery"] for rule in rules}
        self._series = {rule["name"]["as"]: rule["seriesQuery"] for rule in rules}
        self._prometheus = prometheus

    def resources(self) -> dict[str, Any]:
        """What may be asked for."""
        names = [f"pods/{name}" for name in self._queries]
        common = {"singularName": "", "namespaced": True, "kind": "MetricValueList"}
        listed = [{"name": name, **common, "verbs": ["get"]} for name in names]
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": GROUP,
            "resources": listed,
        }

    def values(self, namespace: str, metric: str) -> dict[str, Any] | None:
        """Of every pod of the namespace that has the rule's series; None for no such metric."""
        if metric not in self._queries:
            return None
        found = self._ask(self._series[metric].replace("{", f'{{namespace="{namespace}",', 1))
        pods = sorted({each["metric"]["pod"] for each in found})
        matchers = f'namespace="{namespace}",pod=~"{"|".join(pods)}"'
        query = self._queries[metric].replace("<<.LabelMatchers>>", matchers)
        answers = self._ask(query.replace("<<.GroupBy>>", "pod"))
        return {
            "kind": "MetricValueList",
            "apiVersion": GROUP,
            "metadata": {},
            "items": [_item(namespace, metric, each) for each in answers],
        }

    def _ask(self, query: str) -> list[dict[str, Any]]:
        address = f"{self._prometheus}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        with urllib.request.urlopen(address, timeout=5) as answer:  # noqa: S310 - ours
            result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return result


def _item(namespace: str, metric: str, answer: dict[str, Any]) -> dict[str, Any]:
    pod = {
        "kind": "Pod",
        "apiVersion": "v1",
        "namespace": namespace,
        "name": answer["metric"]["pod"],
    }
    return {
        "describedObject": pod,
        "metricName": metric,
        "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "value": f"{round(1000 * float(answer['value'][1]))}m",
    }


def serve(adapter: Adapter, certificate: str, key: str, address: str, port: int) -> None:
    """Until killed."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path).rstrip("/")
            if match := _METRIC.fullmatch(path):
                found = adapter.values(*match.groups())
            else:
                found = adapter.resources() if path == f"/apis/{GROUP}" else None
            text = json.dumps(found or {}).encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """Silent."""

    server = ThreadingHTTPServer((address, port), Answer)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    server.serve_forever()


if __name__ == "__main__":
    values, prometheus, *where, port = sys.argv[1:]
    rules = yaml.safe_load(Path(values).read_text(encoding="utf-8"))["rules"]["custom"]
    certificate, key, address = where
    serve(Adapter(rules, prometheus), certificate, key, address, int(port))
