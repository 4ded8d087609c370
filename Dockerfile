# docker build -t imp-server .                        CPU (the default)
# docker build -t imp-server:cuda --target cuda .     with torch; docker run --gpus all
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /src

FROM python:3.12-slim AS base
RUN useradd --create-home --uid 10001 imp && mkdir /models && chown imp /models
COPY --from=build /wheels /wheels
COPY packaging/container/entrypoint.sh /usr/local/bin/entrypoint.sh
# Models and caches; a container of its own must be told to listen on every interface.
ENV IMP_HOME=/models IMP_HOST=0.0.0.0
VOLUME /models
WORKDIR /home/imp
EXPOSE 8080
HEALTHCHECK --start-period=600s --interval=10s --timeout=5s \
    CMD python -c "import os, urllib.request as u; u.urlopen(f\"http://127.0.0.1:{os.environ.get('IMP_PORT', 8080)}/health\")"
STOPSIGNAL SIGTERM
ENTRYPOINT ["entrypoint.sh"]

FROM base AS cuda
RUN pip install --no-cache-dir "$(ls /wheels/*.whl)[cuda]" && rm -r /wheels
USER imp

# The last stage is what `docker build` makes by itself.
FROM base AS cpu
RUN pip install --no-cache-dir /wheels/*.whl && rm -r /wheels
USER imp
