# SPDX-License-Identifier: Apache-2.0
"""One action of Helm's library. Run by an environment that has helm-python-sdk.

Standard input, JSON: `kubeconfig`, `namespace`, `action` (a method of its Config), `arguments`.
Standard output, JSON: `result` or `problem`.
"""

from __future__ import annotations

import json
import sys

from helm_python import Config, HelmError

asked = json.load(sys.stdin)
config = Config(kubeconfig_path=asked["kubeconfig"], namespace=asked["namespace"])
try:
    with config:
        answer = {"result": getattr(config, asked["action"])(**asked["arguments"])}
except HelmError as error:
    answer = {"problem": str(error)}
json.dump(answer, sys.stdout)
