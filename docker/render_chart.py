# SPDX-License-Identifier: Apache-2.0
"""Makes the manifests of a chart with Helm's own library.

Run by an environment that has helm-python-sdk. Standard input, JSON: `chart` (a folder), `name` of
the installation, `namespace`, `kube_version` (v1.31.0), `api_versions` that the cluster has besides
Kubernetes' own, `values` to merge over the chart's. Standard output, JSON: `manifests` (text by
template) or `problem`.
"""

from __future__ import annotations

import json
import sys

from helm_python import Chart, HelmError, _native


def main() -> None:
    """Read the request, answer it."""
    request = json.load(sys.stdin)
    options = {key: request[key] for key in ("name", "namespace", "kube_version", "api_versions")}
    try:
        with Chart.load(request["chart"]) as chart:
            chart.validate_schema(request["values"])
            # Chart.render knows no version of Kubernetes; the function behind it does.
            rendered = _native.call_string(
                "helm_render", chart._raw(), json.dumps(request["values"]), json.dumps(options)
            )
        answer = {"manifests": json.loads(rendered)}
    except HelmError as error:
        answer = {"problem": str(error)}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
