# SPDX-License-Identifier: Apache-2.0
# The OpenAI API over Triton: `python -m tritonctl.frontend` and the parts of tritonctl that it needs.
# Context: the folder frontend/ that `tritonctl deploy compose` writes; frontend.json is mounted.
# Any Debian or Ubuntu with Python 3.11 or newer, or apt to install it.
ARG BASE_IMAGE=python:3.12-slim-bookworm

FROM ${BASE_IMAGE} AS python
# hadolint ignore=DL3008
RUN if ! python3 -c 'import venv, ensurepip'; then \
        apt-get update \
        && apt-get install -y --no-install-recommends python3 python3-venv \
        && rm -rf /var/lib/apt/lists/*; \
    fi

FROM python AS packages
# Its lines have hashes, which pip compares.
COPY requirements.txt /build/requirements.txt
# The secret `ca`: certificates that pip trusts instead of its own, behind a TLS proxy. May be empty.
RUN --mount=type=secret,id=ca \
    if [ -s /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi \
    && python3 -m venv /build/pip \
    && python3 -m venv --without-pip /opt/tritonctl/environment \
    && /build/pip/bin/pip --python /opt/tritonctl/environment install --no-cache-dir --disable-pip-version-check --requirement /build/requirements.txt

FROM python
COPY --from=packages /opt/tritonctl/environment /opt/tritonctl/environment
COPY tritonctl /opt/tritonctl/lib/tritonctl
# The code of the tokenizer steps, which counts prompts.
COPY python_backends /opt/tritonctl/lib/python_backends
ENV PATH=/opt/tritonctl/environment/bin:$PATH \
    PYTHONPATH=/opt/tritonctl/lib \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp
# The user needs no name.
USER 65532:65532
EXPOSE 9000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python3", "-m", "tritonctl.frontend", "/etc/frontend/frontend.json", "--live"]
ENTRYPOINT ["python3", "-m", "tritonctl.frontend"]
CMD ["/etc/frontend/frontend.json"]
