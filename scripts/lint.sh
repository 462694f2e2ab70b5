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
# The linker flag is cargo-pgrx's own: with it clippy shares pgrx's bindings with the build.
extension=(cargo --config "target.'cfg(all(target_family = \"unix\", not(target_os = \"macos\")))'.rustflags = [\"-C\", \"link-arg=-Wl,--no-gc-sections\"]"
  clippy --package pg_expiry --all-targets --no-default-features)
"${extension[@]}" --features "pg$version" -- -D warnings
"${extension[@]}" --features "pg$version debug_points" -- -D warnings
cargo clippy --workspace --exclude pg_expiry --all-targets -- -D warnings
