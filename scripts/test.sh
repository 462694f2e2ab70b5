#!/usr/bin/env bash
# test.sh [VERSION|all] [FILTER]: the tests, against private servers of that version.
source "$(dirname "$0")/versions.sh"
filter=${2:-}
if [[ "${1:-}" == all ]]; then
  versions=("${SUPPORTED[@]}")
else
  versions=("$(chosen_version "${1:-}")")
fi

for version in "${versions[@]}"; do
  scripts/setup.sh "$version"
  # A filter that names neither clients' tests nor monitoring's has no need of their programs.
  [[ -n "$filter" && "$filter" != *client* ]] || scripts/clients.sh
  [[ -n "$filter" && "$filter" != *monitoring* ]] || scripts/monitoring.sh
  scripts/server.sh "$version" test
  echo "pg_expiry: testing on $("$(pg_config_of "$version")" --version)"
  PG_EXPIRY_SERVER="$CARGO_TARGET_DIR/pg/$version/test" cargo test --package pg_expiry_tests -- ${filter:+"$filter"}
done
