#!/usr/bin/env bash
# monitoring.sh: the programs that the test of contrib/monitoring runs, out of Debian's packages but not installed: no
# service is started. Does only what is missing, so a second run takes no time.
source "$(dirname "$0")/versions.sh"
folder="$CARGO_TARGET_DIR/monitoring"
packages=(prometheus prometheus-postgres-exporter prometheus-sql-exporter)

is_complete() {
  local program
  for program in promtool "${packages[@]}"; do [[ -x "$folder/usr/bin/$program" ]] || return 1; done
}

is_complete && exit 0
command -v apt-get >/dev/null || fail "the test of contrib/monitoring needs ${packages[*]} in $folder"
echo "pg_expiry: downloading ${packages[*]}"
as_root apt-get update
downloads=$(mktemp -d)
trap 'rm -r "$downloads"' EXIT
(cd "$downloads" && apt-get download "${packages[@]}")
mkdir -p "$folder"
for package in "$downloads"/*.deb; do dpkg -x "$package" "$folder"; done
is_complete || fail "${packages[*]} are not what they were"
