#!/usr/bin/env bash
# borrow.sh SUITE VERSION FOLDER: unpacks PostgreSQL VERSION of another Debian release into FOLDER, with the C
# library and all the others that it was built with, and makes its programs use those. Installs nothing.
source "$(dirname "$0")/versions.sh"
suite=$1 version=$2 folder=$3

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/debs"
private_apt deb "$suite" "$work"

# The server, and the libraries that its programs and modules name; libc brings the loader.
packages=("postgresql-$version" "postgresql-client-$version" "postgresql-server-dev-$version" libpq5 libc6
  libcom-err2 libgcc-s1 libgssapi-krb5-2 libicu76 libk5crypto3 libkeyutils1 libkrb5-3 libkrb5support0 libldap2
  liblz4-1 liblzma5 libnuma1 libpam0g libaudit1 libcap-ng0 libcap2 libreadline8t64 libsasl2-2 libselinux1 libpcre2-8-0
  libssl3t64 libstdc++6 libsystemd0 libtinfo6 libuuid1 libxml2 libxslt1.1 libzstd1 zlib1g)
(cd "$work/debs" && apt-get download --quiet "${packages[@]}")
unset APT_CONFIG
mkdir -p "$folder"
for package in "$work"/debs/*.deb; do
  dpkg -x "$package" "$folder"
done
# Without LLVM, which is large, there is no JIT; PostgreSQL does without it when the module is not there.
rm -f "$folder/usr/lib/postgresql/$version/lib"/llvmjit*

libraries="$folder/usr/lib/$(uname -m)-linux-gnu"
loader=$(echo "$libraries"/ld-linux-*.so.*)
for program in "$folder/usr/lib/postgresql/$version/bin"/*; do
  # Some are scripts.
  patchelf --print-interpreter "$program" >/dev/null 2>&1 || continue
  patchelf --set-interpreter "$loader" --force-rpath --set-rpath "$libraries" "$program"
done
