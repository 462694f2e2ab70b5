#!/usr/bin/env bash
# demo.sh [VERSION] [KEEP]: the sample shop, on a private server with the release build.
source "$(dirname "$0")/versions.sh"
version=$(chosen_version "${1:-}")
scripts/setup.sh "$version"
scripts/server.sh "$version" release
PG_EXPIRY_SERVER="$CARGO_TARGET_DIR/pg/$version/release" KEEP="${2:-}" cargo run --quiet --package pg_expiry_shop
