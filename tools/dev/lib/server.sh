# A server of this checkout's build: started on free ports, stopped when the script ends.

server_pid=0 server_address='' metrics_address=''

# http_ok HOST:PORT PATH: whether a GET answers 200.
http_ok() {
  local status=''
  {
    exec 3<>"/dev/tcp/${1%:*}/${1##*:}" || return 1
    printf 'GET %s HTTP/1.0\r\nHost: %s\r\n\r\n' "$2" "$1" >&3
    read -r -t 5 _ status _ <&3 || true
    exec 3>&-
  } 2>/dev/null
  [[ $status == 200 ]]
}

# listening_on LOG SERVICE: the address that the server's log gives for "grpc" or "metrics".
listening_on() {
  sed -nE "s/.*\b$2\b.*listening on ([^ ]+).*/\1/p; s/.*listening on ([^ ]+).*\b$2\b.*/\1/p" "$1" |
    head -n 1
}

# start_server PRESET LOG ARGUMENT...: sets server_address and metrics_address from what the server
# says that it listens on. Both ports are free ones: nothing that already runs is in the way.
start_server() {
  local preset=$1 log=$2 waited=0
  shift 2
  mkdir -p "$(dirname "$log")"
  "build/$preset/server/fuseblock-server" "$@" --set server.address=127.0.0.1:0 \
    --set metrics.address=127.0.0.1:0 --set admin.address= >"$log" 2>&1 </dev/null &
  server_pid=$!
  at_exit stop_server
  while ! server_is_ready "$log"; do
    if ! kill -0 "$server_pid" 2>/dev/null || ((++waited > 1200)); then
      tail -n 20 "$log" >&2
      die "the server did not become ready; its log is $log"
    fi
    sleep 0.1
  done
}

server_is_ready() {
  server_address=$(listening_on "$1" grpc)
  metrics_address=$(listening_on "$1" metrics)
  [[ -n $server_address && -n $metrics_address ]] && http_ok "$metrics_address" /readyz
}

stop_server() {
  ((server_pid > 0)) || return 0
  kill -TERM "$server_pid" 2>/dev/null || true
  wait "$server_pid" 2>/dev/null || true
  server_pid=0
}
