#!/usr/bin/env bash
# deb.sh [VERSION|all]: target/deb/postgresql-VERSION-pg-expiry_*.deb, for the server of Debian's and PGDG's packages.
# Built against the server of that version that is there, whose files may lie elsewhere.
#
# DEBFULLNAME and DEBEMAIL name the packager, DEB_REVISION is what follows the version, as Debian's tools have it.
source "$(dirname "$0")/versions.sh"
choose_versions "${1:-}"

packager="${DEBFULLNAME:-pg_expiry authors} <${DEBEMAIL:-packages@pg-expiry.invalid}>"
package_version="$(extension_version)-${DEB_REVISION:-1}"
# Of the last commit, so that the same source gives the same package.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y Cargo.toml)}
export SOURCE_DATE_EPOCH

# The crates that are part of the library, as "name version license".
linked_crates() {
  cargo tree --package pg_expiry --no-default-features --features "pg$version" --edges normal,no-proc-macro \
    --prefix none --no-dedupe --format '{p} {l}' | awk '$1 != "pg_expiry" { sub(/^v/, "", $2); print }' | sort -u
}

# The licence, and those of what is linked into the library.
copyright() {
  local name number license text
  cat LICENSE
  printf '\n\nThe library contains these Rust crates, under their own licences:\n\n'
  linked_crates | while read -r name number license; do echo "$name $number ($license)"; done
  linked_crates | while read -r name number license; do
    for text in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/"$name-$number"/{LICENSE,COPYING,UNLICENSE,license}*; do
      [[ ! -f $text ]] || printf '\n---- %s %s: %s\n\n%s\n' "$name" "$number" "$(basename "$text")" "$(<"$text")"
    done
  done
}

changelog() {
  printf 'pg-expiry (%s) unstable; urgency=medium\n\n' "$package_version"
  printf '  * pg_expiry %s: see changelog.gz.\n\n' "$(extension_version)"
  printf -- ' -- %s  %s\n' "$packager" "$(date --utc --rfc-email --date "@$SOURCE_DATE_EPOCH")"
}

control() {
  cat <<CONTROL
Package: $package
Source: pg-expiry
Version: $package_version
Architecture: $(dpkg --print-architecture)
Maintainer: $packager
Installed-Size: $(du --apparent-size -k -s "$root" --exclude DEBIAN | cut -f 1)
Depends: postgresql-$version, $1
Section: database
Priority: optional
Description: cancels rows at their deadline, inside PostgreSQL $version
 An unpaid order, a seat hold, a cart, a coupon: pg_expiry cancels such a row at
 its deadline, exactly once, with everything that belongs to it, in one
 transaction, and notifies whoever listens.
 .
 The server loads it with shared_preload_libraries = 'pg_expiry'; CREATE
 EXTENSION pg_expiry makes it known to a database.
CONTROL
}

# build_deb VERSION: in a folder of its own, as it will be installed.
build_deb() {
  version=$1
  package="postgresql-$version-pg-expiry"
  local config staged root library share documents depends
  scripts/setup.sh "$version"
  command -v dpkg-shlibdeps >/dev/null || fail "a Debian package is built with the tools of Debian's dpkg-dev"
  config=$(pg_config_of "$version")
  scripts/stage.sh "$config"
  staged=$(staged_for "$version")
  root=$(mktemp -d)
  library="$root/usr/lib/postgresql/$version/lib/pg_expiry.so"
  share="$root/usr/share/postgresql/$version/extension"
  documents="$root/usr/share/doc/$package"
  mkdir -p "$root/DEBIAN" "$share" "$documents"
  chmod 755 "$root"

  install -D -m 644 "$staged$("$config" --pkglibdir)/pg_expiry.so" "$library"
  strip --strip-unneeded --remove-section=.comment "$library"
  install -m 644 "$staged$("$config" --sharedir)"/extension/pg_expiry* "$share"
  install -m 644 README.md "$documents"
  copyright >"$documents/copyright"
  gzip -9 -n <CHANGELOG.md >"$documents/changelog.gz"
  changelog | gzip -9 -n >"$documents/changelog.Debian.gz"

  # dpkg-shlibdeps reads the source package that it believes to be in.
  mkdir -p "$root/source/debian"
  printf 'Source: pg-expiry\n\nPackage: %s\nArchitecture: any\n' "$package" >"$root/source/debian/control"
  depends=$(cd "$root/source" && dpkg-shlibdeps -O "$library" 2>/dev/null | sed -n 's/^shlibs:Depends=//p')
  rm -r "$root/source"
  [[ $depends == *libc6* ]] || fail "dpkg-shlibdeps does not know what the library needs: $depends"

  control "$depends" >"$root/DEBIAN/control"
  (cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
  mkdir -p "$CARGO_TARGET_DIR/deb"
  dpkg-deb --root-owner-group --build "$root" "$(deb_of "$version")"
  rm -r "$root"
}

for version in "${versions[@]}"; do build_deb "$version"; done
