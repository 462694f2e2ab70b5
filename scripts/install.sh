#!/usr/bin/env bash
# install.sh PG_CONFIG: release build into that server, as every extension does.
source "$(dirname "$0")/versions.sh"
config=${1:-$(command -v pg_config || true)}
[[ -x "$config" ]] || fail "usage: make install PG_CONFIG=/path/to/pg_config"
version=$(major_version_of "$config")
export "PG${version}_PG_CONFIG=$config"
scripts/setup.sh "$version"
build_for "$version"
staged="$CARGO_TARGET_DIR/pg/$version/install"
rm -rf "$staged"
cargo pgrx package --package pg_expiry --pg-config "$config" --out-dir "$staged"

sudo=()
[[ -w "$("$config" --pkglibdir)" && -w "$("$config" --sharedir)/extension" ]] || sudo=(sudo)
# install(1) puts a new file in the old one's place: a running server keeps the one that it has loaded.
find "$staged" -type f -printf '%P\n' | while read -r file; do
  [[ $file == *.so ]] && mode=755 || mode=644
  "${sudo[@]}" install -D -m "$mode" "$staged/$file" "/$file"
  echo "/$file"
done
