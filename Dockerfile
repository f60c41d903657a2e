# syntax=docker/dockerfile:1
# Owner and clients use the same image: `docker run sigil serve …`, `docker run sigil join …`.

FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
# The processor's build of torch: a tenth of the size. For a GPU leave the index out.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN python -m venv /opt/sigil \
    && /opt/sigil/bin/pip install --no-cache-dir --extra-index-url "$TORCH_INDEX" .

FROM python:3.12-slim
# Not root, and a number, so that a cluster can check it.
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin sigil \
    && install -d -o sigil -g sigil -m 0700 /work /bundle /bundles/0 /bundles/1 /bundles/2
COPY --from=build /opt/sigil /opt/sigil
ENV PATH=/opt/sigil/bin:$PATH HOME=/tmp MPLCONFIGDIR=/tmp PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001
WORKDIR /work
ENTRYPOINT ["sigil"]
CMD ["--help"]
