#!/usr/bin/env bash
# bench.sh [VERSION]: measures the release build beside what people use instead.
source "$(dirname "$0")/versions.sh"
version=$(chosen_version "${1:-}")
scripts/setup.sh "$version"
scripts/server.sh "$version" release
echo "pg_expiry: measuring on $("$(pg_config_of "$version")" --version)"
PG_EXPIRY_SERVER="$CARGO_TARGET_DIR/pg/$version/release" cargo run --quiet --release --package pg_expiry_bench
