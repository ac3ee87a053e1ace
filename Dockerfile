# A node: what a site, or the Master, runs in a deployed study (docs/deploy.md, "In a container").
#   docker build -t fedshed-node --build-arg ENGINE=nvflare .
FROM python:3.11-slim-bookworm AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim-bookworm
ARG ENGINE=nvflare
COPY --from=build /wheels /wheels
COPY constraints.txt /wheels/
RUN pip install --no-cache-dir -c /wheels/constraints.txt "$(ls /wheels/*.whl)[${ENGINE},sql,protected]" \
    && rm -rf /wheels
# The folder of the node is mounted at /site, and the container runs as its owner: docker run --user.
ENV HOME=/tmp
USER 10001:10001
WORKDIR /site
CMD ["fedshed", "doctor"]
