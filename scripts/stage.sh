#!/usr/bin/env bash
# stage.sh PG_CONFIG: the release build for that server, as files in target/pg/VERSION/install, under the paths where
# the server has them.
source "$(dirname "$0")/versions.sh"
config=$1
version=$(major_version_of "$config")
export "PG${version}_PG_CONFIG=$config"
scripts/setup.sh "$version"
build_for "$version"
staged=$(staged_for "$version")
rm -rf "$staged"
cargo pgrx package --package pg_expiry --pg-config "$config" --out-dir "$staged"
