# docker build --tag tollkeeper . && docker run --rm tollkeeper demo
# Runs as a user of its own (10001), reads /etc/tollkeeper and writes to /var/lib/tollkeeper alone.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
WORKDIR /build
RUN python3 -m venv /opt/tollkeeper
COPY requirements requirements
RUN /opt/tollkeeper/bin/pip install --no-cache-dir --require-hashes --requirement requirements/postgresql.txt
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN /opt/tollkeeper/bin/pip install --no-cache-dir --no-deps --no-build-isolation . \
 && /opt/tollkeeper/bin/pip uninstall --yes pip setuptools

FROM ${PYTHON_IMAGE}
RUN groupadd --gid 10001 tollkeeper \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/tollkeeper --shell /usr/sbin/nologin tollkeeper \
 && install --directory --owner 10001 --group 10001 --mode 0700 /etc/tollkeeper /var/lib/tollkeeper
COPY --from=build /opt/tollkeeper /opt/tollkeeper
ENV PATH=/opt/tollkeeper/bin:/usr/local/bin:/usr/bin:/bin \
    TOLLKEEPER_DATA_DIR=/var/lib/tollkeeper \
    TOLLKEEPER_HOST=0.0.0.0 \
    TOLLKEEPER_PORT=8402 \
    TOLLKEEPER_METRICS_ADDRESS=0.0.0.0:8403 \
    TMPDIR=/var/lib/tollkeeper
WORKDIR /etc/tollkeeper
USER 10001:10001
VOLUME ["/etc/tollkeeper", "/var/lib/tollkeeper"]
EXPOSE 8402 8403
HEALTHCHECK --start-period=60s --interval=10s --timeout=5s \
  CMD ["python3", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8402/healthz', timeout=4)"]
ENTRYPOINT ["tollkeeper"]
CMD ["serve"]
