# wecfl with its native engine and the HTTP endpoint:
#   docker build -t wecfl .
#   docker run --rm -v "$PWD/runs:/data/runs" wecfl run --out runs/first
#   docker run --rm -p 8000:8000 -v "$PWD/runs:/data/runs:ro" wecfl serve runs/first --host 0.0.0.0
FROM python:3.11-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY native native
COPY src src
RUN pip wheel --no-deps --wheel-dir /wheels .

FROM python:3.11-slim
COPY constraints.txt /tmp/
COPY --from=build /wheels /wheels
# The CPU build of torch: elsewhere the index may give one with CUDA.
RUN pip install --no-cache-dir -c /tmp/constraints.txt --extra-index-url https://download.pytorch.org/whl/cpu \
        "wecfl[serve,onnx,tables] @ file://$(ls /wheels/*.whl)" \
    && useradd --create-home wecfl && install --directory --owner wecfl /data
USER wecfl
WORKDIR /data
ENTRYPOINT ["wecfl"]
CMD ["--help"]
