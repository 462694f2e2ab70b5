#!/usr/bin/env bash
# build_asserting.sh VERSION FOLDER: builds PostgreSQL VERSION of Debian's unstable release with --enable-cassert, into
# FOLDER. Takes some minutes.
source "$(dirname "$0")/versions.sh"
version=$1 folder=$2

missing=()
for package in bison flex perl bzip2 xz-utils; do
  command -v "${package%-utils}" >/dev/null || missing+=("$package")
done
((${#missing[@]} == 0)) || { as_root apt-get update && apt_install "${missing[@]}"; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
private_apt deb-src sid "$work"
(cd "$work" && apt-get source --quiet --download-only "postgresql-$version")
unset APT_CONFIG
mkdir "$work/source"
tar -xf "$work"/postgresql-"$version"_*.orig.tar.* --strip-components 1 -C "$work/source"
cd "$work/source"
echo "pg_expiry: building PostgreSQL $version with assertions"
./configure --quiet --prefix="$folder" --enable-cassert --enable-debug --without-icu --without-llvm --without-readline \
  --without-zlib CFLAGS='-O1 -g'
# To a make that a make has called, PostgreSQL's makefiles leave the headers out that are to be generated first.
unset MAKELEVEL MAKEFLAGS MFLAGS
make --silent --jobs "$(nproc)"
make --silent install
