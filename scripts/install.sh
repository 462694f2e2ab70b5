#!/usr/bin/env bash
# install.sh all|install PG_CONFIG: release build for that server, as every extension does; `install` puts it there.
source "$(dirname "$0")/versions.sh"
config=${2:-$(command -v pg_config || true)}
[[ -x "$config" ]] || fail "usage: make $1 PG_CONFIG=/path/to/pg_config"
staged=$(staged_for "$(major_version_of "$config")")
# Root seldom has a Rust: `sudo make install` installs what `make all` has built.
if [[ $1 == all || ! -d "$staged" ]] || command -v cargo >/dev/null; then
  scripts/stage.sh "$config"
fi
[[ $1 == install ]] || exit 0

sudo=()
[[ -w "$("$config" --pkglibdir)" && -w "$("$config" --sharedir)/extension" ]] || sudo=(sudo)
# install(1) puts a new file in the old one's place: a running server keeps the one that it has loaded.
find "$staged" -type f -printf '%P\n' | while read -r file; do
  [[ $file == *.so ]] && mode=755 || mode=644
  "${sudo[@]}" install -D -m "$mode" "$staged/$file" "/$file"
  echo "/$file"
done
