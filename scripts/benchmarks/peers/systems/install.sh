# Sourced by scripts/loadtest --peers after _env.sh: puts each system that is measured beside Cellblock into an
# environment of its own, .servers/peers/NAME, as its lock file says. One that cannot be had leaves a file `failed`
# there with the reason, which the result shows. PEERS_OF, set before, names the only one that is wanted.

PEERS="$ROOT/.servers/peers"
PINS="$ROOT/scripts/benchmarks/peers/systems"

# install_peer LOCK: LOCK is package-lock.json or requirements.txt.
install_peer() {
  local lock="$1" pins place
  pins="$(dirname "$lock")"
  place="$PEERS/$(basename "$pins")"
  mkdir -p "$place"
  cp "$PINS"/serve.* "$pins"/*.* "$place/"
  ! cmp -s "$lock" "$place/stamp" || return 0
  say "installing ${place#"$ROOT"/}"
  rm -f "$place/stamp" "$place/failed" "$place/install.log"
  if packages_of "$lock" "$place"; then
    cp "$lock" "$place/stamp"
  else
    { grep -hE '^npm (ERR|error)|^ERROR' "$place/install.log" || echo "see $place/install.log"; } |
      head -n 2 | tr '\n' ' ' >"$place/failed"
  fi
}

packages_of() {
  if [ "$(basename "$1")" = requirements.txt ]; then
    make_venv "$2/venv" "$2/stamp"
    with_log "$2/install.log" "$2/venv/bin/python" -m pip install --no-input --disable-pip-version-check -r "$1"
  else
    (cd "$2" && with_log "$2/install.log" npm_cli ci --ignore-scripts --no-audit --no-fund)
  fi
}

install_peers() {
  local lock
  for lock in "$PINS"/${PEERS_OF:-*}/package-lock.json "$PINS"/${PEERS_OF:-*}/requirements.txt; do
    [ -e "$lock" ] || continue
    install_peer "$lock"
  done
}

locked install_peers
