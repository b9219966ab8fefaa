# Resnap in a container: Python, a Java run time that comes as a wheel, and nothing of the system's.
#
#   docker build -t resnap .            # with extras: --build-arg EXTRAS=otel,plot
#   docker run --rm --read-only --tmpfs /tmp:exec,mode=1777 --user "$(id -u):$(id -g)" \
#     -v /var/lib/kafka/data:/data:ro resnap scan /data
#
#   docker run -d --read-only --tmpfs /tmp:exec,mode=1777 -p 8936:8936 -v resnap-state:/var/lib/resnap \
#     -v /var/lib/kafka/data:/data:ro -e RESNAP_LOG_DIRS=/data resnap serve --listen 0.0.0.0:8936 --auth token
#
# /tmp and the state are all that is written to. /tmp must allow programs (exec), since Java unpacks libraries there.
# On a Spark cluster the executors need the same minor version of Python.
ARG PYTHON=3.11

FROM python:${PYTHON}-slim AS build
WORKDIR /src
# Every dependency is held against its hash before it is built or unpacked.
COPY requirements.lock .
RUN pip wheel --no-cache-dir --require-hashes --wheel-dir /wheels -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY resnap resnap
COPY storage storage
COPY replay replay
COPY tiering tiering
COPY scheduler scheduler
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .
# From those wheels alone, and of them only what runs: the lock file also has the tools of development.
ARG EXTRAS=
RUN python -m venv --without-pip /opt/resnap \
 && pip --python /opt/resnap/bin/python install --no-cache-dir --no-index --find-links /wheels "kafka-resnap[$EXTRAS]"
# Does it run? This also leaves the launcher script of the Java run time in the cache, which is read-only later, and the
# second demo an archive of Spark's classes, from which every container starts faster.
RUN XDG_CACHE_HOME=/opt/resnap/cache /opt/resnap/bin/resnap doctor \
 && XDG_CACHE_HOME=/opt/resnap/cache /opt/resnap/bin/resnap demo \
 && XDG_CACHE_HOME=/opt/resnap/cache /opt/resnap/bin/resnap demo

FROM python:${PYTHON}-slim
# Of a release: its version and commit.
ARG VERSION=
ARG REVISION=
LABEL org.opencontainers.image.title="Resnap" \
      org.opencontainers.image.description="Rebuilds missing Kafka producer snapshots and ships segments with them to tiered storage" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version=$VERSION \
      org.opencontainers.image.revision=$REVISION
COPY --from=build /opt/resnap /opt/resnap
COPY docs/deploy/healthcheck.py /opt/resnap/
ENV PATH=/opt/resnap/bin:$PATH HOME=/tmp XDG_CACHE_HOME=/opt/resnap/cache RESNAP_STATE_DIR=/var/lib/resnap
# What the service keeps, and what runs leave to each other. Who may open it may also hold its locks: so it is closed to
# all but the user below and group 0, which another user takes (--user UID:0), or mounts a directory of its own here.
RUN install -d -o 1000 -g 0 -m 0770 /var/lib/resnap
VOLUME /var/lib/resnap
# Of `resnap serve`, once it is told to listen beyond the container.
EXPOSE 8936
# Any other user will do as well, such as the broker's, who may read its log dir; of the state, see above.
USER 1000:1000
WORKDIR /tmp
# Of `resnap serve`, wherever it listens: is the process alive? Other commands are healthy as long as they run.
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --retries=3 CMD ["python", "/opt/resnap/healthcheck.py"]
# Python as the first process of a container ignores SIGTERM, but not this; it ends with 130.
STOPSIGNAL SIGINT
ENTRYPOINT ["resnap"]
CMD ["--help"]
