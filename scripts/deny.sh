#!/usr/bin/env bash
# deny.sh: licences, bans and sources of all crates by deny.toml; and known vulnerabilities, if the database of them can
# be fetched. ADVISORIES=required makes its absence an error.
source "$(dirname "$0")/versions.sh"
DENY_VERSION=0.20.2
[[ "$(cargo deny --version 2>/dev/null)" == "cargo-deny $DENY_VERSION" ]] ||
  cargo install cargo-deny --version "$DENY_VERSION" --locked --root "$CARGO_TARGET_DIR/tools"

# check MANIFEST WHAT...
check() {
  local manifest=$1
  shift
  echo "pg_expiry: the crates of $manifest"
  local deny=(cargo deny --workspace --manifest-path "$manifest" --config deny.toml)
  "${deny[@]}" check --hide-inclusion-graph "$@"
  if "${deny[@]}" fetch db >/dev/null 2>&1; then
    "${deny[@]}" check advisories
  elif [[ "${ADVISORIES:-}" == required ]]; then
    fail "the database of advisories cannot be reached from here"
  else
    echo "advisories not checked: their database cannot be reached from here"
  fi
}

check Cargo.toml licenses bans sources
# What is banned is banned from the library.
check fuzz/Cargo.toml licenses sources
