# SPDX-License-Identifier: Apache-2.0
"""Whether a gateway serves the routes that were written last, by what Envoy itself reports.

Every written routes file has a version of its own. Envoy's statistics name the version of the
routes that it serves (`version_text` of its route discovery, a text readout), also after a restart
and for routes that equal the previous ones. A gateway that does not answer serves nothing as far as
this module is concerned: absence never confirms.
"""

from __future__ import annotations

from tritonctl.protocol.metrics import Metrics

# Added to the URL of Envoy's Prometheus metrics.
ROUTES_QUERY = "filter=rds&text_readouts"
_VERSION_TEXT = "envoy_http_rds_version_text"


def serves_routes(metrics: Metrics, version: str) -> bool:
    """Whether Envoy serves this version of the routes, and no other one on any listener."""
    served_versions = {sample.labels["text_value"] for sample in metrics.samples(_VERSION_TEXT)}
    return served_versions == {version}
