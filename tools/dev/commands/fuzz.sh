# fuzz: runs each fuzz target for a while: ./dev fuzz [SECONDS-PER-TARGET] [TARGET]
# Default 30 seconds each. A target reads its seeds from tests/fuzz/corpus/TARGET; an input that
# crashes it is kept in build/fuzz/crashes and the command fails.

main() {
  local seconds=${1:-30} wanted=${2:-} program name count=0
  [[ $seconds =~ ^[0-9]+$ ]] || usage_error "SECONDS-PER-TARGET: expected a number, got '$seconds'"
  need_debian build check
  build fuzz fuzz_targets
  mkdir -p build/fuzz/crashes
  for program in build/fuzz/tests/fuzz/*_fuzz; do
    [[ -x $program ]] || continue
    name=$(basename "$program")
    [[ -z $wanted || $name == "$wanted"* ]] || continue
    mkdir -p "build/fuzz/corpus/$name" "tests/fuzz/corpus/$name"
    step "fuzzing $name for $seconds s" "$program" -max_total_time="$seconds" -rss_limit_mb=2048 \
      -artifact_prefix="build/fuzz/crashes/$name-" "build/fuzz/corpus/$name" "tests/fuzz/corpus/$name"
    note "$(grep -oE 'Done [0-9]+ runs.*' "build/logs/fuzzing-${name//_/-}-for-$seconds-s.log")"
    count=$((count + 1))
  done
  ((count > 0)) || die "no fuzz target${wanted:+ that starts with $wanted}"
}
