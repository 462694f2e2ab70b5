#!/usr/bin/env bash
# test.sh [VERSION|all] [FILTER]: the tests, against private servers of that version, or of one version after the
# other and of the build with assertions. All are run, whatever fails; the last lines are the sums.
source "$(dirname "$0")/versions.sh"
filter=${2:-}
choose_versions "${1:-}"
[[ "${1:-}" != all ]] || versions+=("$ASSERTING")

# The oldest version before this one that is there, or that the system's packages offer: to upgrade from.
older_than() {
  local version config
  for version in "${SUPPORTED[@]}"; do
    config=$(pg_config_of "$version")
    if ((version < $1)) && [[ -n "$config" && -f "$("$config" --includedir-server)/postgres.h" ]]; then
      echo "$version"
      return
    fi
  done
  for version in "${SUPPORTED[@]}"; do
    if ((version < $1)) && apt-cache show "postgresql-server-dev-$version" >/dev/null 2>&1; then
      echo "$version"
      return
    fi
  done
}

# Servers in memory, where there is room: tests make and copy many.
room=$(df --output=avail --block-size=1G /dev/shm 2>/dev/null | tail -n 1)
if [[ -z "${TMPDIR:-}" ]] && ((${room:-0} >= 4)); then export TMPDIR=/dev/shm; fi

# Most tests wait most of the time.
export RUST_TEST_THREADS="${RUST_TEST_THREADS:-$((3 * $(nproc)))}"

# test_on VERSION
test_on() {
  local version=$1 options=() old
  # Only the tests of pg_upgrade need a second server; without one they count as ignored.
  if [[ upgrade == *"$filter"* || "$filter" == *upgrade* ]]; then
    old=$(older_than "$(major_of "$version")")
    if [[ -n "$old" ]]; then
      scripts/setup.sh "$old"
      scripts/server.sh "$old" test
      export PG_EXPIRY_OLD_SERVER="$CARGO_TARGET_DIR/pg/$old/test"
      options+=(--include-ignored)
    fi
  fi
  scripts/setup.sh "$version"
  # A filter that names neither clients' tests nor monitoring's has no need of their programs.
  [[ -n "$filter" && "$filter" != *client* ]] || scripts/clients.sh
  [[ -n "$filter" && "$filter" != *monitoring* ]] || scripts/monitoring.sh
  scripts/server.sh "$version" test
  echo "pg_expiry: testing on $("$(pg_config_of "$version")" --version) ($version)"
  PG_EXPIRY_SERVER="$CARGO_TARGET_DIR/pg/$version/test" \
    cargo test --package pg_expiry_tests -- "${options[@]}" ${filter:+"$filter"}
}

if ((${#versions[@]} == 1)); then
  test_on "${versions[0]}"
  exit
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
status=0
for version in "${versions[@]}"; do
  # In a process of its own: `set -e` has no effect within a condition.
  if "$0" "$version" "$filter" 2>&1 | tee "$work/log"; then outcome=passed; else outcome=FAILED status=1; fi
  counts=$(sed -n 's/^test result: [a-zA-Z]*\. \(.*\); [0-9]* measured.*/\1/p' "$work/log" | tail -n 1)
  echo "pg_expiry: PostgreSQL $version: $outcome${counts:+, $counts}" >>"$work/results"
done
cat "$work/results"
echo "pg_expiry: ignored is the test of pg_upgrade where there is no older version to upgrade from"
exit "$status"
