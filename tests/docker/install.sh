#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What the tests with containers need of the system, where apt and root are there to install it.
set -eu
missing=""
command -v dockerd >/dev/null || missing="docker.io iptables"
command -v mmdebstrap >/dev/null || missing="$missing mmdebstrap"
[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "NO DOCKER: cannot install $missing here, tests with containers are skipped" >&2
  exit 0
fi
# shellcheck disable=SC2086 # a list of words
{ apt-get update -qq && apt-get install -qq -y --no-install-recommends $missing; } >/dev/null 2>&1 \
  || echo "NO DOCKER: $missing cannot be installed, tests with containers are skipped" >&2
