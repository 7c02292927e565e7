# The server's images: `cpu`, and `cuda` for machines with an NVIDIA GPU, whose driver the container
# runtime brings. ./dev image builds them; deploy/compose.yaml runs them.
FROM debian:12-slim AS packages
COPY deploy/packages /packages
RUN awk '/^#/ || !NF { next } / build/ { print $1 > "/packages/build" } / runtime/ { print $1 > "/packages/runtime" }' \
    /packages/debian.txt

# What both images run on.
FROM debian:12-slim AS runtime
COPY --from=packages /packages/runtime /tmp/packages
# hadolint ignore=SC2046
RUN apt-get update && \
    apt-get install -y --no-install-recommends $(cat /tmp/packages) && \
    rm -rf /var/lib/apt/lists/* /tmp/packages && \
    useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin fuseblock
COPY deploy/fuseblock.toml /etc/fuseblock/fuseblock.toml
# gRPC, metrics. The admin port is for the machine itself.
EXPOSE 8001 8002
# The first seconds of a large model are spent on its weights.
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \
    CMD ["/usr/local/bin/fuseblock-server", "--config", "/etc/fuseblock/fuseblock.toml", "--healthcheck"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/bin/tini", "--", "/usr/local/bin/fuseblock-server"]
CMD ["--config", "/etc/fuseblock/fuseblock.toml"]

FROM debian:12-slim AS sources
COPY --from=packages /packages/build /tmp/packages
# hadolint ignore=SC2046
RUN apt-get update && \
    apt-get install -y --no-install-recommends $(cat /tmp/packages) && \
    rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .

FROM sources AS build
ARG COMMIT=unknown
RUN cmake --preset release -DFUSEBLOCK_TESTS=OFF && \
    FUSEBLOCK_COMMIT=$COMMIT cmake --build build/release && \
    cmake --install build/release --strip --prefix /install

FROM sources AS build-cuda
ARG COMMIT=unknown
# Behind a proxy that signs for others, ./dev image passes on the host's certificates.
ARG PIP_CERT
RUN python3 -m pip install --no-cache-dir --no-deps --target /cuda -r deploy/packages/cuda.txt && \
    ln -s lib /cuda/nvidia/cu13/lib64 && \
    for name in cublas cublasLt cudart; do \
        ln -s "lib$name.so.13" "/cuda/nvidia/cu13/lib/lib$name.so"; \
    done
RUN cmake --preset cuda -DFUSEBLOCK_TESTS=OFF \
        -DCMAKE_CUDA_COMPILER=/cuda/nvidia/cu13/bin/nvcc -DCUDAToolkit_ROOT=/cuda/nvidia/cu13 && \
    FUSEBLOCK_COMMIT=$COMMIT cmake --build build/cuda && \
    cmake --install build/cuda --strip --prefix /install && \
    cp /cuda/nvidia/cu13/lib/libcublasLt.so.13 /install/lib/

FROM runtime AS cuda
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=build-cuda /install/bin /usr/local/bin
COPY --from=build-cuda /install/lib/*.so* /usr/local/lib/
USER 10001

FROM runtime AS cpu
COPY --from=build /install/bin /usr/local/bin
USER 10001
