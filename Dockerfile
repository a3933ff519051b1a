# Two stages: wheels are made where a compiler may be needed, and only they reach the image.
# Multi-arch: nothing here names an architecture (docker buildx build --platform linux/amd64,linux/arm64 .).
ARG PYTHON=3.11
FROM python:${PYTHON}-slim AS build
WORKDIR /src
COPY requirements.txt requirements-build.txt ./
RUN python -m venv /opt/epp \
 && /opt/epp/bin/pip install --no-cache-dir --require-hashes -r requirements.txt
RUN python -m venv /opt/build \
 && /opt/build/bin/pip install --no-cache-dir --require-hashes -r requirements-build.txt
COPY pyproject.toml README.md LICENSE ./
COPY epp epp
COPY datastore datastore
COPY registry registry
COPY artifacts artifacts
COPY console console
COPY protos protos
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation -w /opt/wheel . \
 && /opt/epp/bin/pip install --no-cache-dir --no-deps --no-index /opt/wheel/*.whl

FROM python:${PYTHON}-slim
COPY --from=build /opt/epp /opt/epp
ENV PATH=/opt/epp/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# Nothing is written but the Unix socket of --transport auto, in TMPDIR: give it a tmpfs or an
# emptyDir when the root file system is read-only (docker run --read-only --tmpfs /tmp).
USER 65532:65532
EXPOSE 9002 9003 9090
# `epp serve` unless told otherwise; arguments that are only flags are `epp serve`'s too. The two other
# programs are in the image as well: --entrypoint epp-artifacts or epp-registry, a pod's `command`.
ENTRYPOINT ["epp"]
CMD ["serve"]
