# SPDX-License-Identifier: Apache-2.0
"""Render the manifests of a chart with Helm's library.

Runs in an environment with helm-python-sdk. Standard input, JSON: `chart` (a folder), `name` of the
installation, `namespace`, `kube_version` (v1.31.0), `api_versions` beyond Kubernetes' built-in
ones, `values` to merge over the chart's. Standard output, JSON: `manifests` (template to text) or
`problem`.
"""

from __future__ import annotations

import json
import sys

from helm_python import Chart, HelmError, _native


def main() -> None:
    """Read the request and write the result."""
    request = json.load(sys.stdin)
    options = {key: request[key] for key in ("name", "namespace", "kube_version", "api_versions")}
    try:
        with Chart.load(request["chart"]) as chart:
            chart.validate_schema(request["values"])
            # Chart.render takes no Kubernetes version; the native function does.
            rendered = _native.call_string(
                "helm_render", chart._raw(), json.dumps(request["values"]), json.dumps(options)
            )
        result = {"manifests": json.loads(rendered)}
    except HelmError as error:
        result = {"problem": str(error)}
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
