#!/bin/sh
# Writes fuseblock/descriptors.binpb from the wire contract. A test fails when it is out of date.
set -eu
cd "$(dirname "$0")"
protoc -I ../../proto --include_imports --descriptor_set_out="${1:-fuseblock/descriptors.binpb}" \
  fuseblock/v1/block_service.proto google/rpc/status.proto google/rpc/error_details.proto \
  grpc/health/v1/health.proto
