# SPDX-License-Identifier: Apache-2.0
"""The chart's end on a real cluster: nothing stays but what is the user's."""

from __future__ import annotations

import subprocess

import pytest

from tests.kubernetes.cluster.installation import NAME, Installation
from tests.kubernetes.cluster.machines import wait_until

pytestmark = pytest.mark.kubernetes

KEPT = {f"persistentvolumeclaim/{NAME}-releases"}


def test_uninstalling_leaves_the_releases_alone(installation: Installation) -> None:
    """Of all kinds that the API has, also of what a rollout made: the claim, which pods served."""
    if not installation.revision:
        installation.have()
    assert installation.everything() > installation.before
    installation.uninstall()
    wait_until(
        lambda: installation.everything() <= installation.before | KEPT,
        120,
        lambda: str(installation.everything() - installation.before),
    )
    assert installation.everything() == installation.before | KEPT
    labels = f"--selector=app.kubernetes.io/instance={NAME}"
    kinds = ",".join(installation.kinds(namespaced=False))
    assert installation.cluster.kubectl("get", kinds, labels, "--output=name") == ""
    with pytest.raises(subprocess.CalledProcessError):
        installation.kubectl("get", f"service/{NAME}")
