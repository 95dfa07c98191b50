# Sourced after _env.sh: installs Ray (75 MB to download, 215 MB on the disk) from PyPI into .servers/ray, once, and puts it and the
# tests' support on PYTHONPATH. Ray is not among the development tools.

RAY="ray==2.60.0"
RAY_PLACE="$ROOT/.servers/ray"

install_ray() {
  [ "$(cat "$RAY_PLACE/installed" 2>/dev/null)" = "$RAY" ] && return
  say "installing $RAY (.servers/ray)"
  rm -rf "$RAY_PLACE"
  mkdir -p "$RAY_PLACE"
  # With the versions that .venv has, since these come before those.
  with_log "$RAY_PLACE/pip.log" "$VENV/bin/python" -m pip install --no-input --disable-pip-version-check \
    -c "$ROOT/scripts/constraints.txt" --target "$RAY_PLACE" "$RAY" || exit 1
  echo "$RAY" >"$RAY_PLACE/installed"
}

locked install_ray
export RAY_AUTH_MODE=disabled # whatever this machine's user has; scripts/ray_check.py makes a cluster with a token, too
export PYTHONPATH="$RAY_PLACE:$ROOT/tests:$ROOT/scripts"
