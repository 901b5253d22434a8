# SPDX-License-Identifier: Apache-2.0
# Triton without a GPU: tritonserver from nvidia-pytriton's wheel, with the layout of NVIDIA's image,
# and the packages of the project's Python backends. No weights: the model repository is mounted.
# Context: the folder triton/ that `tritonctl deploy compose` writes.
# Any Debian or Ubuntu with glibc 2.35 or newer, with Python 3.11 or 3.12 or apt to install it.
ARG BASE_IMAGE=python:3.12-slim-bookworm

FROM ${BASE_IMAGE} AS python
# The stub links libpython, a separate package in Debian.
# hadolint ignore=DL3008
RUN if ! python3 -c 'import venv, ensurepip'; then \
        apt-get update \
        && apt-get install -y --no-install-recommends python3 python3-venv \
        && apt-get install -y --no-install-recommends \
            "libpython$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')" \
        && rm -rf /var/lib/apt/lists/*; \
    fi
RUN /usr/sbin/groupadd --gid 1000 triton-server \
    && /usr/sbin/useradd --uid 1000 --gid 1000 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin triton-server

FROM python AS server
# Packages of the lock are verified. requirements.txt adds those of your own models and steps.
COPY cpu_requirements.lock requirements.txt /build/
COPY lay_out.py /build/lay_out.py
# The secret `ca`: certificates that pip trusts instead of its own, behind a TLS proxy. May be empty.
RUN --mount=type=secret,id=ca \
    if [ -s /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi \
    && python3 -m venv /build/pip \
    && python3 -m venv --without-pip /opt/tritonctl/environment \
    && /build/pip/bin/pip --python /opt/tritonctl/environment install --no-cache-dir --disable-pip-version-check --no-deps --require-hashes --requirement /build/cpu_requirements.lock \
    && /build/pip/bin/pip --python /opt/tritonctl/environment install --no-cache-dir --disable-pip-version-check --requirement /build/requirements.txt \
    && /opt/tritonctl/environment/bin/python /build/lay_out.py
COPY tritonctl /opt/tritonctl/lib/tritonctl

FROM python
COPY --from=server /opt /opt
ENV PATH=/opt/tritonctl/environment/bin:/opt/tritonserver/bin:$PATH \
    LD_LIBRARY_PATH=/opt/tritonserver/lib \
    HF_HUB_OFFLINE=1 \
    GLIBC_TUNABLES=glibc.malloc.hugetlb=1 \
    HOME=/tmp
USER 1000:1000
EXPOSE 8000 8001 8002
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=3s --timeout=5s --start-period=300s --retries=5 \
    CMD ["python3", "/opt/tritonctl/lib/tritonctl/runtimes/docker/entrypoint.py", "--healthy"]
ENTRYPOINT ["python3", "/opt/tritonctl/lib/tritonctl/runtimes/docker/entrypoint.py"]
CMD ["tritonserver", "--model-repository=/models"]
