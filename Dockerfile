# The broker without an embedded Postgres: set DATABASE_URL, run `migrate` once, then `serve`.
# Runs as uid 65532 on a read-only root file system. Only /tmp must be writable.

FROM python:3.13-slim AS build
ENV UV_PYTHON_DOWNLOADS=never UV_LINK_MODE=copy UV_SYSTEM_CERTS=1
RUN pip install --no-cache-dir uv==0.13.7
WORKDIR /srv
COPY pyproject.toml requirements.lock ./
# Install the runtime dependencies only. Versions and hashes come from the lock file, used as
# constraints: a wrong hash fails the build.
RUN uv venv --python /usr/local/bin/python /opt/venv \
    && uv pip install --no-cache --compile-bytecode --python /opt/venv/bin/python -r pyproject.toml -c requirements.lock
COPY app app
COPY alembic alembic
COPY openapi openapi
COPY alembic.ini ./
RUN /opt/venv/bin/python -m compileall -q app && rm pyproject.toml requirements.lock

FROM python:3.13-slim
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 LONGSHORE_HOST=0.0.0.0 LONGSHORE_PORT=8080
COPY --from=build /opt/venv /opt/venv
COPY --from=build /srv /srv
WORKDIR /srv
USER 65532:65532
EXPOSE 8080
# Liveness, not readiness: a broker must not be restarted because its database is unavailable.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as u; u.urlopen(f\"http://127.0.0.1:{os.environ['LONGSHORE_PORT']}/livez\", timeout=2)"]
ENTRYPOINT ["python", "-m", "app"]
CMD ["serve"]
