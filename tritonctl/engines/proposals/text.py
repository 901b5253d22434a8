# SPDX-License-Identifier: Apache-2.0
"""The proposed project file as text, with comments about the next steps."""

from __future__ import annotations

from tritonctl.engines.proposals.proposal import Proposal
from tritonctl.project.yaml_text import yaml_text

_COMMENTS = {
    "schema": "Written by `tritonctl init`. Every field: `tritonctl schema`; memory: `tritonctl "
    "plan`.",
    "loadtests": "`tritonctl loadtest run` sends these {count} requests: P99 needs 500 after the "
    "warm-up.",
    "profiles": "The same on other hardware: `tritonctl plan --env {profile}`.",
}


def project_text(proposal: Proposal, name: str) -> str:
    """Return the text of tritonctl.yaml."""
    facts = {
        "count": (proposal.load.scenario or {}).get("count", ""),
        "profile": next(iter(proposal.profiles), ""),
    }
    parts = []
    for section, value in proposal.data(name).items():
        comment = _COMMENTS.get(section)
        head = f"# {comment.format(**facts)}\n" if comment else ""
        parts.append(head + yaml_text({section: value}, flat_leaves=section != "schema"))
    return "\n".join(parts)
