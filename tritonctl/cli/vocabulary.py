# SPDX-License-Identifier: Apache-2.0
"""The words of `--help`: what stands for a value, and the panels that options are listed in."""

from __future__ import annotations

# Each option that takes a value shows one of these; docs/reference/cli.md prints the table.
METAVARS = {
    "ADDRESS": "a host name or an IP address",
    "CHOICE": "one of the words that the explanation lists",
    "DAYS": "a number of days",
    "DISTRIBUTION": "a number, or a distribution such as exponential:20",
    "FIELD=VALUE": "a field of tritonctl.yaml with its path, and its value",
    "FILE": "a file",
    "FOLDER": "a folder",
    "GPU": "a GPU type, or several separated by commas",
    "HOST:PORT": "the address of a server's gRPC",
    "MINUTES": "a number of minutes",
    "MODEL": "a model, or where the explanation says so several separated by commas",
    "N": "a whole number",
    "NAME": "a name",
    "NUMBER": "a number",
    "PATH": "a file or a folder",
    "PORT": "a TCP port",
    "PROFILE": "a profile of tritonctl.yaml",
    "RATE": "requests per second",
    "RELEASE": "a release: its number, NUMBER-HASH or `latest`",
    "RULE": "a rule of `check`, or the beginning of several",
    "SCENARIO": "a load test of `loadtests:` in tritonctl.yaml",
    "SECONDS": "a number of seconds",
    "SHARE": "a number from 0 to 1",
    "SIZE": "an amount of memory, such as 64G",
    "SPEC": "text in the form that the explanation gives",
    "TEXT": "any text",
    "URL": "a URL, or HOST:PORT",
    "VERSION": "a version",
}
CONNECTION, CLUSTER, PROJECT, OUTPUT = "Connection", "Cluster", "Project", "Output"
SAMPLING, TARGET = "Sampling", "Target machine"
# In the order of `--help`, after the options of the verb itself.
PANELS = (SAMPLING, TARGET, CONNECTION, CLUSTER, PROJECT, OUTPUT)
