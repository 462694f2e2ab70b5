#!/usr/bin/env bash
# fuzz.sh [SECONDS] [TARGET]: feeds each target of fuzz/ for so long, with libFuzzer. What makes one fail is left in
# target/fuzz/TARGET/, and docs/releasing.md tells how to do it again.
#
# Stable Rust will do: libFuzzer needs no more than the coverage counters of LLVM, and rules without `unsafe` need no
# sanitizer.
source "$(dirname "$0")/versions.sh"
seconds=${1:-30}
command -v c++ >/dev/null || { as_root apt-get update && apt_install build-essential; }
mapfile -t targets < <(sed -n 's/^path = "targets\/\(.*\)\.rs"$/\1/p' fuzz/Cargo.toml)
[[ -z "${2:-}" ]] || targets=("$2")

triple=$(rustc --version --verbose | sed -n 's/^host: //p')
flags=(--cfg fuzzing -Cpasses=sancov-module -Ccodegen-units=1)
for flag in level=4 inline-8bit-counters pc-table trace-compares; do
  flags+=("-Cllvm-args=-sanitizer-coverage-$flag")
done
# With a target, cargo leaves build scripts and macros without the flags.
built="$CARGO_TARGET_DIR/fuzz/build"
RUSTFLAGS="${flags[*]}" cargo build --quiet --release --locked --manifest-path fuzz/Cargo.toml \
  --target-dir "$built" --target "$triple"

failed=()
for target in "${targets[@]}"; do
  found="$CARGO_TARGET_DIR/fuzz/$target" log=$(mktemp)
  mkdir -p "$found/corpus"
  if "$built/$triple/release/$target" "$found/corpus" -artifact_prefix="$found/" -max_total_time="$seconds" \
    -max_len=4096 -timeout=10 -rss_limit_mb=1024 -print_final_stats=1 >"$log" 2>&1; then
    echo "$target: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs in $seconds s, none fails"
  else
    tail -n 40 "$log"
    failed+=("$target")
  fi
  rm "$log"
done
((${#failed[@]} == 0)) || fail "fuzzing has found something in ${failed[*]}"
