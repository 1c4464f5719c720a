# docker build -t phalanx .
# docker run --rm -v "$PWD:/work" phalanx train job.yaml
FROM python:3.12-slim
RUN apt-get update && apt-get install -y --no-install-recommends openssh-client \
    && rm -rf /var/lib/apt/lists/*
COPY pyproject.toml constraints.txt README.md LICENSE /src/
COPY src /src/src
# PyTorch for CPUs: the usual one brings gigabytes of CUDA.
RUN pip install --no-cache-dir -c /src/constraints.txt \
    --extra-index-url https://download.pytorch.org/whl/cpu /src && rm -rf /src
WORKDIR /work
ENTRYPOINT ["phalanx"]
CMD ["--help"]
