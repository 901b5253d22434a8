# SPDX-License-Identifier: Apache-2.0
"""A cluster to work with: `python -m tests.kubernetes.cluster up` or `down`. Tests then use it."""

from __future__ import annotations

import sys

from tests.kubernetes.cluster import making
from tests.kubernetes.cluster.running import Cluster

cluster = Cluster(making.folder() / "kept")
if sys.argv[1:] == ["up"]:
    if not cluster.is_up():
        cluster.start()
        cluster.until_ready()
    sys.stdout.write(f"export KUBECONFIG={cluster.kubeconfig}\n")
elif sys.argv[1:] == ["down"]:
    cluster.stop()
else:
    sys.exit(__doc__)
