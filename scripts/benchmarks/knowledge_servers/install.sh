# Sourced by scripts/bench after _servers.sh: installs the three servers that only `scripts/bench knowledge` runs.
#
#   .servers/knowledge/venv               the Python server of requirements.txt
#   .servers/knowledge/node/node_modules  the npm servers of package-lock.json, without the drivers for other databases
#                                         than SQLite that DBHub can do without

PINS="$ROOT/scripts/benchmarks/knowledge_servers"
PLACE="$SERVERS/knowledge"

python_server_is_current() {
  [ -f "$PLACE/venv/stamp" ] &&
    [ "$(cat "$PLACE/venv/stamp")" = \
      "$(stamp_of "$PLACE/venv/bin/python" "$PLACE/venv" "$PINS/requirements.txt")" ]
}

npm_servers_are_current() {
  [ -f "$PLACE/node/stamp" ] &&
    cat "$PINS/package.json" "$PINS/package-lock.json" | cmp -s - "$PLACE/node/stamp"
}

install() {
  mkdir -p "$PLACE/node"
  if ! python_server_is_current; then
    make_venv "$PLACE/venv" "$PLACE/venv/stamp"
    say "installing the Python server (.servers/knowledge/venv/pip.log)"
    pip_into "$PLACE/venv" -r "$PINS/requirements.txt" || exit 1
    stamp_of "$PLACE/venv/bin/python" "$PLACE/venv" "$PINS/requirements.txt" >"$PLACE/venv/stamp"
  fi
  if ! npm_servers_are_current; then
    say "installing the npm servers (.servers/knowledge/node/npm.log)"
    rm -f "$PLACE/node/stamp" "$PLACE/node/npm.log"
    cp "$PINS/package.json" "$PINS/package-lock.json" "$PLACE/node/"
    cd "$PLACE/node" || exit 1
    with_log "$PLACE/node/npm.log" npm_cli ci --omit=optional --ignore-scripts --no-audit --no-fund || exit 1
    cd "$ROOT" || exit 1
    cat "$PINS/package.json" "$PINS/package-lock.json" >"$PLACE/node/stamp"
  fi
}

{ python_server_is_current && npm_servers_are_current; } || locked install
