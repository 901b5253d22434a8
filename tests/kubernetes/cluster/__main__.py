# SPDX-License-Identifier: Apache-2.0
"""A cluster to work with: `python -m tests.kubernetes.cluster up` or `down`. Tests then use it.

`make` builds what it is made of, where the cache does not have it: a quarter of an hour.
"""

from __future__ import annotations

import sys

from tests.container_engine import MissingError
from tests.kubernetes.cluster import making
from tests.kubernetes.cluster.running import Cluster

cluster = Cluster(making.folder() / "kept")
if sys.argv[1:] == ["up"]:
    if not cluster.is_up():
        cluster.start()
    cluster.until_ready()
    sys.stdout.write(f"export KUBECONFIG={cluster.kubeconfig}\n")
elif sys.argv[1:] == ["make"]:
    try:
        making.make()
    except MissingError as missing:
        sys.stderr.write(f"NO CLUSTER: Kubernetes is not tested here: {missing}\n")
elif sys.argv[1:] == ["down"]:
    cluster.stop()
else:
    sys.exit(__doc__)
