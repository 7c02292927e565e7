# Steps: a long command as one line on the screen, its output in a log, the log's tail when it fails.

FUSEBLOCK_LOGS=${FUSEBLOCK_LOGS:-$FUSEBLOCK_ROOT/build/logs}
step_group=0  # the process group of the step that runs now

if [[ -t 1 ]]; then
  bold=$'\e[1m' dim=$'\e[2m' red=$'\e[31m' green=$'\e[32m' plain=$'\e[0m' clear=$'\r\e[K'
else
  bold='' dim='' red='' green='' plain='' clear=''
fi

say() { printf '%s\n' "$*"; }
note() { printf '  %s%s%s\n' "$dim" "$*" "$plain"; }
title() { printf '%s%s%s\n' "$bold" "$*" "$plain"; }
die() {
  printf '%serror:%s %s\n' "$red" "$plain" "$*" >&2
  exit 1
}
usage_error() {
  printf '%serror:%s %s\n' "$red" "$plain" "$*" >&2
  exit 2
}

# What to run when the script ends, however it ends, newest first.
cleanups=()
run_cleanups() {
  local status=$? i
  trap - EXIT INT TERM
  if ((step_group > 0)); then kill -TERM -- "-$step_group" 2>/dev/null || true; fi
  for ((i = ${#cleanups[@]} - 1; i >= 0; i--)); do eval "${cleanups[i]}" || true; done
  exit "$status"
}
trap run_cleanups EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
at_exit() { cleanups+=("$*"); }

seconds_since() { awk -v a="$1" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }'; }

# A log's last line that says something, short enough for the rest of the screen's line.
last_line() {
  tail -c 400 "$1" 2>/dev/null | tr '\r' '\n' | tr -cd '[:print:]\n' | awk 'NF { line = $0 } END {
    print substr(line, 1, 52) }'
}

# step TITLE COMMAND ARGUMENT...
# Runs the command (a program or a function, in a process group of its own). Bash forgets `set -e` in
# a function whose caller tests its status: where a step may fail, its function chains with &&.
step() {
  local name=$1 log start status=0 beats=0
  shift
  mkdir -p "$FUSEBLOCK_LOGS"
  log=$FUSEBLOCK_LOGS/$(tr -cs 'a-zA-Z0-9' '-' <<<"${name,,}" | sed 's/-*$//').log
  start=$EPOCHREALTIME
  set -m
  ("$@") >"$log" 2>&1 </dev/null &
  step_group=$!
  set +m
  while kill -0 "$step_group" 2>/dev/null; do
    if [[ -n $clear ]]; then
      printf '%s  %-44s %6.0f s  %s%s%s' "$clear" "$name" "$(seconds_since "$start")" \
        "$dim" "$(last_line "$log")" "$plain"
    elif ((++beats % 300 == 0)); then
      printf '  %-44s %6.0f s so far: %s\n' "$name" "$(seconds_since "$start")" "$(last_line "$log")"
    fi
    sleep 0.2
  done
  wait "$step_group" || status=$?
  step_group=0
  if ((status == 0)); then
    printf '%s  %-44s %6s s\n' "$clear" "$name" "$(seconds_since "$start")"
    return 0
  fi
  printf '%s  %s%-44s failed after %s s%s\n' "$clear" "$red" "$name" "$(seconds_since "$start")" \
    "$plain"
  printf '%s\n' "--- the end of ${log#"$FUSEBLOCK_ROOT"/}" >&2
  tail -n "${FUSEBLOCK_TAIL:-40}" "$log" >&2
  printf '%s\n' "---" >&2
  return "$status"
}
