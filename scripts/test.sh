#!/usr/bin/env bash
# test.sh [VERSION|all] [FILTER]: the tests, against private servers of that version.
source "$(dirname "$0")/versions.sh"
filter=${2:-}
if [[ "${1:-}" == all ]]; then
  versions=("${SUPPORTED[@]}")
else
  versions=("$(chosen_version "${1:-}")")
fi

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

# Most tests wait most of the time.
export RUST_TEST_THREADS="${RUST_TEST_THREADS:-$((3 * $(nproc)))}"

for version in "${versions[@]}"; do
  options=()
  # Only the tests of pg_upgrade need a second server; without one they count as ignored.
  if [[ upgrade == *"$filter"* || "$filter" == *upgrade* ]]; then
    old=$(older_than "$version")
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
  echo "pg_expiry: testing on $("$(pg_config_of "$version")" --version)"
  PG_EXPIRY_SERVER="$CARGO_TARGET_DIR/pg/$version/test" \
    cargo test --package pg_expiry_tests -- "${options[@]}" ${filter:+"$filter"}
done
