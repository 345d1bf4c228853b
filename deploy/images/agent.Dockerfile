# The agent's image: its own code, and what agent.lock pins. Build it from the repository's root:
#   podman build -f deploy/images/agent.Dockerfile -t lineside-agent:0.1.0 .
# BASE: a Python 3.11, the one that the lock was made for.
ARG BASE=docker.io/library/python:3.11-slim-bookworm

FROM ${BASE} AS build
RUN python3 -m venv /opt/lineside
COPY deploy/images/agent.lock /tmp/
RUN /opt/lineside/bin/python -m pip install --no-cache-dir --no-compile --only-binary :all: \
        --require-hashes -r /tmp/agent.lock && \
    /opt/lineside/bin/python -m pip uninstall -q -y setuptools pip
COPY proto/lineside /opt/lineside/code/lineside
COPY agent /opt/lineside/code/agent
COPY LICENSE deploy/images/agent.cdx.json /opt/lineside/
COPY pyproject.toml deploy/images/metadata.py /tmp/
RUN /opt/lineside/bin/python /tmp/metadata.py /tmp/pyproject.toml && \
    /opt/lineside/bin/python -m compileall -q /opt/lineside/lib /opt/lineside/code

FROM ${BASE}
COPY --from=build /opt/lineside /opt/lineside
ENV PATH=/opt/lineside/bin:$PATH PYTHONPATH=/opt/lineside/code PYTHONDONTWRITEBYTECODE=1
WORKDIR /
USER 10001:10001
ENTRYPOINT ["/opt/lineside/bin/python", "-m", "agent.main"]
