#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What tests need of the system, installed where apt and root are there; else what is left out, and
# how to get it. Usage: install.sh [prometheus] [chromium]; what containers need is always wanted.
set -eu

# NAME, packages, what is left out without them
want() {
  [ -n "$2" ] || return 0
  # RUNLEVEL: a service of its own is not wanted, it would take a port.
  # shellcheck disable=SC2086 # a list of words
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    { apt-get update -qq && RUNLEVEL=1 apt-get install -qq -y --no-install-recommends $2; } \
      >/dev/null 2>&1 && return 0
  fi
  echo "NO $1: $3 will be skipped (Debian, as root: apt install $2)" >&2
}

missing() { command -v "$1" >/dev/null || echo "$2"; }

for_containers="$(missing dockerd "docker.io iptables")"
command -v mmdebstrap >/dev/null || for_containers="${for_containers:+$for_containers }mmdebstrap"
want DOCKER "$for_containers" "tests with containers or a cluster"
for name in "$@"; do
  case $name in
    prometheus) want PROMETHEUS "$(missing promtool prometheus)" "tests of rules, queries, the HPA" ;;
    chromium) want BROWSER "$(missing chromium chromium)" "tests of a load test's report" ;;
    *) echo "install.sh: no such part: $name" >&2; exit 2 ;;
  esac
done
