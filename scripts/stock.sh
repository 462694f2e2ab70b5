#!/usr/bin/env bash
# stock.sh VERSION FOLDER: a small Debian (or Ubuntu) in that empty folder, with the server as its packages install it:
# this machine's own release if that has the version, else another release of Debian. Ends with 3 if there is none.
source "$(dirname "$0")/versions.sh"
version=$1 folder=$2
source /etc/os-release
keyring="/usr/share/keyrings/$ID-archive-keyring.gpg"

# The distribution's own lines among those that this machine has, with its updates.
own_sources() {
  apt-get indextargets --format "deb [signed-by=$keyring] \$(REPO_URI) \$(RELEASE) \$(COMPONENT)" \
    'Created-By: Packages' "Origin: ${ID^}" | sort -u
}

options=()
if apt-cache show "postgresql-$version" >/dev/null 2>&1; then
  suite=$VERSION_CODENAME
  sources=$(own_sources)
else
  case "$ID-$version" in
  debian-15) suite=bookworm ;;
  debian-17) suite=trixie ;;
  debian-18)
    suite=sid
    # Its index is good for a week, and the copy that this machine reaches may be older.
    options=(--aptopt='Acquire::Check-Valid-Until "false"')
    ;;
  *) exit 3 ;;
  esac
  sources="deb [signed-by=$keyring] $(debian_site) $suite main"
fi
[[ -n "$sources" && -f "$keyring" ]] || exit 3

command -v mmdebstrap >/dev/null || { as_root apt-get update && apt_install mmdebstrap; }
# With mounts of its own, so that none is left, whatever happens.
as_root unshare --mount -- mmdebstrap --quiet --variant=apt --dpkgopt=force-unsafe-io "${options[@]}" \
  --include="postgresql-$version" "$suite" "$folder" - <<<"$sources"
