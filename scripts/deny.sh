#!/usr/bin/env bash
# deny.sh: licences, bans and sources of all crates by deny.toml; and known vulnerabilities, if the database of them can
# be reached or is there from an earlier run. ADVISORIES=required makes its absence an error.
source "$(dirname "$0")/versions.sh"
DENY_VERSION=0.20.2
[[ "$(cargo deny --version 2>/dev/null)" == "cargo-deny $DENY_VERSION" ]] ||
  cargo install cargo-deny --version "$DENY_VERSION" --locked --root "$CARGO_TARGET_DIR/tools"

for manifest in Cargo.toml fuzz/Cargo.toml; do
  echo "pg_expiry: the crates of $manifest"
  check=(cargo deny --workspace --manifest-path "$manifest" --config deny.toml)
  "${check[@]}" check --hide-inclusion-graph licenses bans sources
  if "${check[@]}" fetch db >/dev/null 2>&1; then
    "${check[@]}" check advisories
  elif [[ "${ADVISORIES:-}" == required ]]; then
    fail "the database of advisories cannot be reached from here"
  else
    echo "advisories not checked: their database cannot be reached from here"
  fi
done
