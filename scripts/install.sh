#!/usr/bin/env bash
# install.sh PG_CONFIG: release build into that server, as every extension does.
source "$(dirname "$0")/versions.sh"
config=${1:-$(command -v pg_config || true)}
[[ -x "$config" ]] || fail "usage: make install PG_CONFIG=/path/to/pg_config"
version=$(major_version_of "$config")
export "PG${version}_PG_CONFIG=$config"
scripts/setup.sh "$version"
build_for "$version"
sudo=()
[[ -w "$("$config" --pkglibdir)" && -w "$("$config" --sharedir)/extension" ]] || sudo=(--sudo)
cargo pgrx install --package pg_expiry --release --pg-config "$config" "${sudo[@]}"
