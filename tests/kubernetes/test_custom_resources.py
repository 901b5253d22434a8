# SPDX-License-Identifier: Apache-2.0
"""What is not Kubernetes' own: by the types and the limits of KEDA, the Gateway API, the operator.

npm's @kubernetes-models are made of their Go types. An API server would drop a field that it does
not know; here it is a mistake.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.kubernetes.charts import NEWEST, Chart, Manifest, of_kind
from tests.kubernetes.test_optional_parts import GATEWAY_API, ROUTES
from tests.kubernetes.test_scaling import BY_KEDA, KEDA, OPERATOR
from tests.typescript import TypeScript

pytestmark = pytest.mark.exhaustive

PACKAGES = {
    "keda": (KEDA, "2.0.0"),
    "gateway-api": (GATEWAY_API, "2.0.0"),
    "prometheus-operator": (OPERATOR, "6.0.0"),
}
MODULES = {api: f"@kubernetes-models/{name}/{api}" for name, (api, _) in PACKAGES.items()}
FROM_ZERO = {"scaling": {"by": "keda", "minReplicas": 0}}
SPARE = {"scaling": {"by": "keda", "spare": 1}}
GRPC_ALONE = {"gatewayApi": {"parent": "public", "grpcHostnames": ["grpc.example"]}}
Check = Callable[[Sequence[Manifest]], str]


@pytest.fixture(scope="session")
def check(tmp_path_factory: pytest.TempPathFactory) -> Check:
    """Returns what is wrong with manifests: unknown fields and types, or else values."""
    packages = (f"@kubernetes-models/{name}@{version}" for name, (_, version) in PACKAGES.items())
    typescript = TypeScript(tmp_path_factory.mktemp("types"), *packages)
    return lambda manifests: typescript.problems(program(manifests)) or typescript.output()


def program(manifests: Sequence[Manifest]) -> str:
    """Literals of their types, which tell what their validators say."""
    lines = []
    for number, manifest in enumerate(manifests):
        kind, module = manifest["kind"], f"{MODULES[manifest['apiVersion']]}/{manifest['kind']}"
        lines += [
            f"import {{ {kind} as K{number}, I{kind} as T{number} }} from {json.dumps(module)};",
            f"const m{number}: T{number} = {json.dumps(manifest)};",
            f"try {{ new K{number}(m{number}).validate(); }}",
            f"catch (error) {{ console.log({json.dumps(kind)}, String(error)); }}",
        ]
    return "\n".join(lines)


def custom(chart: Chart, values: Any = None) -> list[Manifest]:
    """Those of its manifests that a cluster with all three would take."""
    made = chart.manifests(NEWEST, values, api_versions=list(MODULES))
    return [copy.deepcopy(each) for each in made if each["apiVersion"] in MODULES]


def test_every_field_and_value_is_known(chart: Chart, check: Check) -> None:
    """Of all that the chart can make of them."""
    settings = (BY_KEDA, FROM_ZERO, SPARE, ROUTES, GRPC_ALONE)
    manifests = [each for values in settings for each in custom(chart, values)]
    kinds = {each["kind"] for each in manifests}
    assert kinds == {"ScaledObject", "GRPCRoute", "HTTPRoute", "PodMonitor", "PrometheusRule"}
    assert check(manifests) == ""


FIELDS: dict[str, tuple[str, Callable[[Any], None]]] = {
    "'pollingIntervall' does not exist": (
        "ScaledObject",
        lambda spec: spec.update(pollingIntervall=5),
    ),
    "Type 'boolean' is not assignable to type 'string'": (
        "ScaledObject",
        lambda spec: spec["triggers"][0]["metadata"].update(ignoreNullValues=False),
    ),
    "'hostname' does not exist": ("GRPCRoute", lambda spec: spec.update(hostname="x.example")),
    "'podEndpoints' does not exist": ("PodMonitor", lambda spec: spec.update(podEndpoints=[])),
}
VALUES: dict[str, tuple[str, Callable[[Any], None]]] = {
    "timeouts/request must match pattern": (
        "HTTPRoute",
        lambda spec: spec["rules"][0].update(timeouts={"request": "never"}),
    ),
    "hostnames/0 must match pattern": (
        "GRPCRoute",
        lambda spec: spec.update(hostnames=["no name"]),
    ),
}


@pytest.mark.parametrize("breaks", [FIELDS, VALUES], ids=["fields", "values"])
def test_what_is_wrong_would_be_told(
    chart: Chart, check: Check, breaks: dict[str, tuple[str, Callable[[Any], None]]]
) -> None:
    """The check itself is checked: each of these breaks is told."""
    manifests = []
    for kind, change in breaks.values():
        made = custom(chart, BY_KEDA | ROUTES)
        broken = of_kind(made, kind, "triton" if kind == "PodMonitor" else "")
        change(broken["spec"])
        manifests.append(broken)
    told = check(manifests).replace('"', "'").replace("''", "'")
    assert [words for words in breaks if words not in told] == [], told
