# image: builds the container images: ./dev image [cpu|cuda]
# Uses docker where its engine runs, buildah otherwise. Without a registry in reach, the Debian base image
# is made with debootstrap. Tags: fuseblock:cpu, fuseblock:cuda.

# Debian 12 from the distribution's own packages, under the name that the Dockerfile asks for.
make_base_image() {
  local folder
  folder=$(mktemp -d)
  debootstrap --variant=minbase bookworm "$folder/root"
  rm -rf "$folder/root/var/cache/apt/archives/"*.deb
  local container
  container=$("$@" from scratch)
  "$@" add "$container" "$folder/root" /
  "$@" commit --format docker "$container" docker.io/library/debian:12-slim
  "$@" rm "$container"
  rm -rf "$folder"
}

main() {
  local target=${1:-cpu} commit
  [[ $target == cpu || $target == cuda ]] || usage_error "usage: ./dev image [cpu|cuda]"
  commit=$(git rev-parse --short HEAD)
  if docker info >/dev/null 2>&1; then
    step "building the image ($target)" docker build --target "$target" \
      --build-arg "COMMIT=$commit" --tag "fuseblock:$target" .
    return
  fi
  need_debian image
  local buildah=(buildah) certificates=()
  if [[ -n ${SSL_CERT_FILE:-} ]]; then
    certificates=(--volume "$SSL_CERT_FILE:/run/host-certificates.crt:ro"
      --build-arg PIP_CERT=/run/host-certificates.crt)
  fi
  "${buildah[@]}" pull --quiet docker.io/library/debian:12-slim >/dev/null 2>&1 ||
    "${buildah[@]}" inspect docker.io/library/debian:12-slim >/dev/null 2>&1 ||
    step "making the Debian 12 base image" make_base_image "${buildah[@]}"
  step "building the image ($target)" "${buildah[@]}" bud --isolation chroot --pull-never \
    --format docker --layers "${certificates[@]}" --target "$target" --build-arg "COMMIT=$commit" \
    --tag "fuseblock:$target" .
}
