#!/usr/bin/env bash
# clients.sh: what examples/clients need to run: psycopg, Node.js with pg, Java with pgjdbc; and builds the Rust one.
# Does only what is missing, so a second run takes no time. The tests fail without, they do not skip.
source "$(dirname "$0")/versions.sh"
modules="$CARGO_TARGET_DIR/clients/node"

has_psycopg() { /usr/bin/python3 -c 'import psycopg' 2>/dev/null; }
has_node_pg() { NODE_PATH="$modules/node_modules:/usr/share/nodejs" node -e 'require("pg")' 2>/dev/null; }
has_java() { java --list-modules 2>/dev/null | grep -q '^jdk.compiler'; }

packages=()
has_psycopg || packages+=(python3-psycopg)
command -v node >/dev/null || packages+=(nodejs node-pg)
has_java || packages+=(default-jdk-headless)
[[ -f /usr/share/java/postgresql.jar ]] || packages+=(libpostgresql-jdbc-java)
if ((${#packages[@]})); then
  command -v apt-get >/dev/null || fail "the example clients need ${packages[*]}"
  echo "pg_expiry: installing ${packages[*]}"
  as_root apt-get update
  apt_install "${packages[@]}"
fi
if ! has_node_pg; then
  command -v npm >/dev/null || apt_install npm
  npm install --prefix "$modules" --no-audit --no-fund --loglevel error pg@8
fi
cargo build --quiet --package pg_expiry_refunds
