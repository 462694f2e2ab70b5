#!/usr/bin/env bash
# deb_life.sh VERSION [FOLDER] DEB EXTENSION_VERSION: install, CREATE EXTENSION, first cancelled row, removal. FOLDER has a
# system with a stock server, and then we are root with mounts and processes of our own; without one it is the private
# server with the files of the package. Each step prints a line that begins with `ok: ` or `not ok: `.
source "$(dirname "$0")/versions.sh"
version=$1 deb=${*: -2:1} extension=${*: -1}
root=""
(($# == 3)) || root=$2

# check WHAT COMMAND...: one step.
check() {
  local output what=$1
  shift
  if output=$("$@" 2>&1); then
    echo "ok: $version: $what"
  else
    echo "not ok: $version: $what"
    echo "$output"
    return 1
  fi
}

# inside COMMAND...: in the system with the stock server.
inside() {
  chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"
}

# server COMMAND...: a program of the server's, as one of its users would start it.
server() {
  local program="$bin/$1"
  shift
  if [[ -n "$root" ]]; then
    inside setpriv --reuid=postgres --regid=postgres --init-groups "$program" "$@"
  elif ((EUID == 0)); then
    env -u RUST_BACKTRACE setpriv --reuid=pgexpiry --regid=pgexpiry --clear-groups "$program" "$@"
  else
    env -u RUST_BACKTRACE "$program" "$@"
  fi
}

psql() {
  server psql --no-psqlrc --quiet --no-align --tuples-only --set ON_ERROR_STOP=1 --host "$data" --username tester \
    --dbname postgres "$@"
}

# Every file of the system; not what the tools that change it keep for themselves.
files() {
  find "$root" -xdev -printf '/%P %y %m %U:%G %s %l\n' | sort |
    grep -v -E '^/(tmp|proc|dev|run|var/log|var/cache/(ldconfig|debconf)|var/lib/dpkg/(status-old|lock|triggers))\b' |
    sed -E 's/^(\S+ d .*) [0-9]+ $/\1/'
}

start() {
  server pg_ctl --silent --wait --pgdata "$data" --log "$data/log" start || { cat "$root$data/log"; return 1; }
}

stop() {
  server pg_ctl --silent --wait --pgdata "$data" stop
}

first_cancellation() {
  diff - <(psql --set VERBOSITY=terse --file - <scripts/first_cancellation.sql 2>&1) <<'RESULT'
orders
42|cancelled|cancelled|t
43|pending||
RESULT
}

has_version() {
  diff <(psql --command "SELECT extversion FROM pg_extension WHERE extname = 'pg_expiry'") <(echo "$extension")
}

forgets_it() {
  psql --command 'DROP TABLE orders' --command 'DROP EXTENSION pg_expiry' &&
    sed -i '/^shared_preload_libraries/d' "$root$data/postgresql.conf" && stop && start
}

is_unknown() {
  [[ "$(psql --command "SELECT count(*) FROM pg_available_extensions WHERE name = 'pg_expiry'")" == 0 ]]
}

if [[ -n "$root" ]]; then
  bin="/usr/lib/postgresql/$version/bin"
  mount -t proc proc "$root/proc"
  mount -t tmpfs tmpfs "$root/tmp"
  mount -t tmpfs tmpfs "$root/dev/shm" 2>/dev/null || true
  before=$(files)
  cp "$deb" "$root/tmp/"
  check "dpkg installs it" inside dpkg --install "/tmp/$(basename "$deb")"
  data=/tmp/data
else
  bin="$(readlink -f "$CARGO_TARGET_DIR/pg/$version/deb")/bin"
  data=$(mktemp -d -u)
fi
trap 'stop >/dev/null 2>&1 || true; rm -rf "$root$data"' EXIT

check "a new cluster" server initdb --username tester --auth trust --no-sync --pgdata "$data"
cat >>"$root$data/postgresql.conf" <<CONF
shared_preload_libraries = 'pg_expiry'
listen_addresses = ''
unix_socket_directories = '$data'
fsync = off
CONF
check "the server starts with the library" start
check "from CREATE EXTENSION to the first cancelled row" first_cancellation
check "the extension has the version of the package" has_version
check "the server goes on without it" forgets_it
if [[ -n "$root" ]]; then
  check "dpkg removes it" inside dpkg --purge "postgresql-$version-pg-expiry"
  check "the server knows nothing of it" is_unknown
  check "no file of it stays" diff <(echo "$before") <(files)
fi
stop
