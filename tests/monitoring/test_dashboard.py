# SPDX-License-Identifier: Apache-2.0
"""The dashboard against Grafana's own TypeScript schema, and in itself."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.typescript import TypeScript
from tritonctl.monitoring.dashboard import dashboard
from tritonctl.monitoring.files import DASHBOARD, PROVIDERS, SOURCES, observability_files
from tritonctl.project.file import load_project

CHECKOUT = Path(__file__).parents[2]
SCHEMA = "@grafana/schema@13.2.3"
RAW = "@grafana/schema/dist/esm/raw"
# JSON has the values of Grafana's enums, not their names.
TYPES = f"""
import type {{ Dashboard }} from "{RAW}/dashboard/x/Dashboard_types.gen";
import type * as stat from "{RAW}/composable/stat/panelcfg/x/StatPanelCfg_types.gen";
import type * as lines from "{RAW}/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen";
type Json<T> = T extends string ? `${{T}}`
  : T extends (infer U)[] ? Json<U>[]
  : T extends object ? {{ [K in keyof T]: Json<T[K]> }}
  : T;
type Target = {{
  refId: string; datasource: {{ type: "prometheus"; uid: string }};
  expr: string; legendFormat: string; instant: boolean; range: boolean;
}};
"""

Check = Callable[..., str]


@pytest.fixture(scope="session")
def check(tmp_path_factory: pytest.TempPathFactory) -> Check:
    """Returns what the TypeScript compiler says of dashboards; nothing, if they are."""
    typescript = TypeScript(tmp_path_factory.mktemp("schema"), SCHEMA)
    return lambda *found: typescript.problems(
        TYPES + "\n".join(f"namespace n{n} {{{program(one)}}}" for n, one in enumerate(found))
    )


def program(found: dict[str, Any]) -> str:
    """Literals under their types: what a panel's kind decides, the dashboard's type leaves open."""
    literals = [("Json<Dashboard>", found)]
    for panel in panels(found):
        kind = "stat" if panel["type"] == "stat" else "lines"
        literals.append((f"Json<{kind}.Options>", panel["options"]))
        literals.append(("Target[]", panel["targets"]))
        if kind == "lines":
            literals.append(("Json<lines.FieldConfig>", panel["fieldConfig"]["defaults"]["custom"]))
    return "\n".join(
        f"export const literal{number}: {kind} = {json.dumps(literal)};"
        for number, (kind, literal) in enumerate(literals)
    )


def panels(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Those with data."""
    return [panel for panel in found["panels"] if panel["type"] != "row"]


def test_grafana_s_schema_takes_the_dashboard(check: Check) -> None:
    """Every key and every type, of panels and of what belongs to their kind."""
    assert check(dashboard()) == ""


BREAKS: dict[str, Callable[[dict[str, Any]], None]] = {
    "'colour' does not exist": lambda d: d.update(colour="red"),
    "Type 'string' is not assignable to type 'number'": lambda d: d.update(schemaVersion="41"),
    "'pie' is not assignable": lambda d: panels(d)[0]["options"].update(graphMode="pie"),
    "'legends' does not exist": lambda d: panels(d)[7]["options"].update(legends=1),
    "'expression' does not exist": lambda d: panels(d)[7]["targets"][0].update(expression="up"),
    "'pies' is not assignable": lambda d: _custom(d).update(drawStyle="pies"),
    "'units' does not exist": lambda d: panels(d)[0]["fieldConfig"]["defaults"].update(units="s"),
}


def test_the_schema_refuses_what_is_none(check: Check) -> None:
    """The check itself is checked: each of these breaks is told."""
    broken = [json.loads(json.dumps(dashboard())) for _ in BREAKS]
    for found, change in zip(broken, BREAKS.values(), strict=True):
        change(found)
    told = check(*broken).replace('"', "").replace("''", "'")
    assert [words for words in BREAKS if words not in told] == [], told


def _custom(found: dict[str, Any]) -> dict[str, Any]:
    custom: dict[str, Any] = panels(found)[7]["fieldConfig"]["defaults"]["custom"]
    return custom


def test_panels_lie_beside_each_other() -> None:
    """No two overlap, none leaves the 24 columns, each has a number, a text and its own title."""
    found = dashboard()["panels"]
    cells: set[tuple[int, int]] = set()
    for panel in found:
        at = panel["gridPos"]
        area = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & area, panel["title"]
        assert max(x for x, _ in area) < 24
        cells |= area
    assert len({panel["id"] for panel in found}) == len(found)
    titles = [panel["title"] for panel in found]
    assert len(set(titles)) == len(titles)
    assert all(len(panel["description"]) > 5 for panel in panels({"panels": found}))
    rows = [panel["title"] for panel in found if panel["type"] == "row"]
    assert rows == ["Overview", "Per model", "Text generation", "Releases", "GPU"]


def test_panels_ask_for_series_that_are_recorded() -> None:
    """A name with colons that no rule records would be an empty panel."""
    project = load_project(CHECKOUT / "tritonctl.yaml")
    rules = yaml.safe_load(observability_files(project)["prometheus/rules/recording.yml"])
    recorded = {rule["record"] for group in rules["groups"] for rule in group["rules"]}
    asked = {
        name
        for panel in panels(dashboard())
        for target in panel["targets"]
        for name in re.findall(r"\w+:[\w:]+", target["expr"])
    }
    assert len(asked) > 10
    assert asked <= recorded


def test_grafana_finds_its_data_and_its_dashboard() -> None:
    """Provisioning names the data source that the dashboard begins with."""
    files = observability_files(load_project(CHECKOUT / "tritonctl.yaml"))
    assert json.loads(files[DASHBOARD]) == dashboard()
    [source] = yaml.safe_load(files[SOURCES])["datasources"]
    [variable] = [v for v in dashboard()["templating"]["list"] if v["type"] == "datasource"]
    assert source["uid"] == variable["current"]["value"]
    assert source["type"] == variable["query"]
    [provider] = yaml.safe_load(files[PROVIDERS])["providers"]
    assert provider["options"]["path"] == "/var/lib/grafana/dashboards"
