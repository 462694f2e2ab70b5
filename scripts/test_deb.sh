#!/usr/bin/env bash
# test_deb.sh [VERSION|all]: what target/deb has is installed beside a stock server, cancels its first row, and is removed.
#
# The stock server is one that the distribution's packages have installed into a folder of its own. Where there is none
# of that version, a private server gets the files of the package: then nothing is said about dpkg.
source "$(dirname "$0")/versions.sh"
choose_versions "${1:-}"

folder=$(mktemp -d /var/tmp/pg_expiry-deb.XXXXXX)
log=$(mktemp)
trap 'as_root rm -rf --one-file-system "$folder" "$log"' EXIT

for version in "${versions[@]}"; do
  place="$folder/$version" status=0
  mkdir "$place"
  scripts/stock.sh "$version" "$place" || status=$?
  case $status in
  0)
    echo "pg_expiry: $(basename "$(deb_of "$version")") beside the stock server of $(. "$place/etc/os-release" && echo "$PRETTY_NAME")"
    # With its own processes and mounts, which end with it.
    life=(as_root unshare --mount --pid --ipc --net --fork --kill-child -- scripts/deb_life.sh "$version" "$place")
    ;;
  3)
    echo "pg_expiry: no stock server of $version is to be had; the files of $(basename "$(deb_of "$version")") in a private one"
    scripts/setup.sh "$version"
    scripts/server.sh "$version" deb
    life=(scripts/deb_life.sh "$version")
    ;;
  *) exit "$status" ;;
  esac
  "${life[@]}" "$(deb_of "$version")" "$(extension_version)" 2>&1 | tee -a "$log" || echo "not ok: $version: it ended early" | tee -a "$log"
done

passed=$(grep -c '^ok: ' "$log" || true)
failed=$(grep -c '^not ok: ' "$log" || true)
echo "deb: $passed passed, $failed failed"
((passed > 0 && failed == 0))
