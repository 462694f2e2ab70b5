#!/usr/bin/env bash
# lint.sh [VERSION]: rustfmt and clippy over every package, with and without the debug points.
source "$(dirname "$0")/versions.sh"
version=$(chosen_version "${1:-}")
scripts/setup.sh "$version"
build_for "$version"
if ! { cargo clippy --version && cargo fmt --version; } >/dev/null 2>&1; then
  rustup component add clippy rustfmt
fi

cargo fmt --all --check
cargo fmt --manifest-path fuzz/Cargo.toml --check
for features in "pg$version" "pg$version debug_points"; do
  cargo clippy --package pg_expiry --all-targets --no-default-features --features "$features" -- -D warnings
done
cargo clippy --workspace --exclude pg_expiry --all-targets -- -D warnings
# Without libFuzzer, which would be compiled for it.
cargo clippy --manifest-path fuzz/Cargo.toml --locked --no-default-features --target-dir "$CARGO_TARGET_DIR/fuzz/lint" -- -D warnings
