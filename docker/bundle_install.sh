#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Install tritonctl from this folder, without a network: ./install.sh [ENVIRONMENT]
set -eu
cd "$(dirname "$0")"
here=$(pwd)
environment=${1:-$here/environment}
python=${PYTHON:-python@PYTHON@}
sha256sum --check --quiet SHA256SUMS
if ! command -v "$python" >/dev/null; then
  echo "error: these wheels are for Python @PYTHON@, but $python is missing" >&2
  echo "  try: install it, or set its path: PYTHON=/path/to/python@PYTHON@ ./install.sh" >&2
  exit 4
fi
"$python" -m venv "$environment"
# A URL, because PIP_FIND_LINKS splits paths at spaces.
wheels=$("$python" -c 'import pathlib, sys; print(pathlib.Path(sys.argv[1]).as_uri())' "$here/wheels")
# Environments that tritonctl creates later use these variables, too: no index, no hub. Images by
# their tags: `docker load` keeps no digest.
cat >"$environment/offline.sh" <<END
export PIP_NO_INDEX=1 PIP_FIND_LINKS='$wheels' PIP_CONFIG_FILE=/dev/null HF_HUB_OFFLINE=1
export TRITONCTL_TORCH_INDEX=
export PROMETHEUS_IMAGE=@PROMETHEUS@ GRAFANA_IMAGE=@GRAFANA@
PATH='$environment/bin':\$PATH
END
. "$environment/offline.sh"
"$environment/bin/python" -m pip install --quiet --disable-pip-version-check tritonctl
echo "installed. Next:"
echo "  . '$environment/offline.sh'"
echo "  cd '$here/project' && tritonctl up"
