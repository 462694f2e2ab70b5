#!/usr/bin/env bash
# bench.sh [VERSION]: measures the release build beside what people use instead, and writes the report.
# From the environment: SCALE (full, quick, tiny), ONLY, PEERS (all, none, names), OUT, REPORT=1 (the report alone).
source "$(dirname "$0")/versions.sh"
export SCALE="${SCALE:-full}" ONLY="${ONLY:-}" RESULTS="$CARGO_TARGET_DIR/bench/${SCALE:-full}"
case $SCALE in
full) peers=all out=docs ;;
# pg_cron looks once a minute: with it, half of the time would go by in waiting.
quick) peers=redis,rabbitmq,graphile,pg_boss,procrastinate out="$RESULTS" ;;
tiny) peers=none out="$RESULTS" ;;
*) fail "SCALE is full, quick or tiny, not $SCALE" ;;
esac
# Figures of some contests alone are not the report.
[[ -z "$ONLY" ]] || out="$RESULTS"
OUT=$(realpath -m "${OUT:-$out}")
export OUT
if [[ -n "${REPORT:-}" ]]; then
  exec cargo run --quiet --release --package pg_expiry_bench report
fi

version=$(chosen_version "${1:-}")
scripts/setup.sh "$version"
scripts/server.sh "$version" release
tree=$(readlink -f "$CARGO_TARGET_DIR/pg/$version/release")
peers=${PEERS:-$peers}
if [[ "$peers" == none ]]; then
  PEERS="" PEERS_MISSING="Measured beside no peer that has to be installed."
else
  found=$(scripts/peers.sh "$version" "$peers")
  PEERS=$(head -n 1 <<<"$found") PEERS_MISSING=$(tail -n +2 <<<"$found")
fi
PEERS_FOLDER=$(readlink -m "$CARGO_TARGET_DIR/peers")
export PEERS PEERS_MISSING PEERS_FOLDER
# The server takes pg_cron from where it takes its own.
if [[ ",$PEERS," == *,pg_cron,* ]]; then
  unpacked="$PEERS_FOLDER/debian/usr"
  ln -sfn "$unpacked/lib/postgresql/$version/lib/pg_cron.so" "$tree$("$(pg_config_of "$version")" --pkglibdir)/"
  ln -sfn "$unpacked/share/postgresql/$version/extension"/pg_cron* "$tree$("$(pg_config_of "$version")" --sharedir)/extension/"
fi
COMMIT=$(git describe --always --dirty 2>/dev/null || true)
export COMMIT
echo "pg_expiry: measuring on $("$(pg_config_of "$version")" --version), beside ${PEERS:-no peer}"
PG_EXPIRY_SERVER="$CARGO_TARGET_DIR/pg/$version/release" cargo run --quiet --release --package pg_expiry_bench
