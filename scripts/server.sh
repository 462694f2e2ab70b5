#!/usr/bin/env bash
# server.sh VERSION KIND: builds the extension and a private server that has it, beside the
# system's own, in target/pg/VERSION/KIND. KIND is `test` (dev profile, debug points), `release`, or `deb`: the files
# of the Debian package that is there.
#
# PostgreSQL looks for its library and share folders relative to where its program really
# lies: so the programs are copied, and everything else is a link to the system's files.
source "$(dirname "$0")/versions.sh"
version=$1 kind=$2
build_for "$version"
config=$(pg_config_of "$version")
name="$CARGO_TARGET_DIR/pg/$version/$kind"
lend "$name"
tree=$(readlink -f "$name")

build() {
  cargo pgrx package --package pg_expiry --pg-config "$config" --out-dir "$tree" "$@"
}

unpack_deb() {
  local files library share
  files=$(mktemp -d)
  library="$tree$("$config" --pkglibdir)" share="$tree$("$config" --sharedir)/extension"
  dpkg-deb --extract "$(deb_of "$version")" "$files"
  mkdir -p "$library" "$share"
  rm -f "$library"/pg_expiry* "$share"/pg_expiry*
  cp "$files/usr/lib/postgresql/$version/lib"/pg_expiry* "$library"
  cp "$files/usr/share/postgresql/$version/extension"/pg_expiry* "$share"
  rm -r "$files"
}

case $kind in
test) build --debug --features debug_points ;;
release) build ;;
deb) unpack_deb ;;
*) fail "unknown kind of server: $kind" ;;
esac

# The tests update every version that was ever released.
if [[ $kind == test ]]; then
  find sql/versions -name 'pg_expiry--*.sql' -exec cp {} "$tree$("$config" --sharedir)/extension/" ';'
fi

# mirror FROM TO: links for all that TO does not have, entering the folders that it has.
# A pg_expiry that is installed in the system's server stays out of it.
mirror() {
  local entry name
  for entry in "$1"/*; do
    name=$(basename "$entry")
    if [[ -d "$2/$name" && ! -L "$2/$name" ]]; then
      mirror "$entry" "$2/$name"
    elif [[ ! -e "$2/$name" && "$name" != pg_expiry* ]]; then
      ln -sfn "$entry" "$2/$name"
    fi
  done
}

bindir=$("$config" --bindir)
mkdir -p "$tree$bindir"
cp --dereference --preserve=mode,timestamps --update --remove-destination "$bindir"/* "$tree$bindir/"
for folder in --pkglibdir --sharedir; do
  mirror "$("$config" "$folder")" "$tree$("$config" "$folder")"
done
# A server that was unpacked somewhere brings libraries of its own, and finds them from where it lies.
ldd "$bindir"/* "$("$config" --pkglibdir)"/*.so 2>/dev/null | awk '$2 == "=>" && $3 ~ "^/" { print $3 }' |
  xargs realpath --no-symlinks | sort -u | grep -v -E '^(/usr)?/lib' | while read -r library; do
  mkdir -p "$tree$(dirname "$library")"
  ln -sfn "$library" "$tree$library"
done || true # none is left on Debian
ln -sfn ".$bindir" "$tree/bin"
