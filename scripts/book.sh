#!/usr/bin/env bash
# book.sh: the documents as a book of HTML pages, in target/book. A warning is an error, and so is a link to nowhere.
source "$(dirname "$0")/versions.sh"
MDBOOK_VERSION=0.5.4
PAGES=(docs README*.md ARCHITECTURE.md CHANGELOG.md LICENSE examples/clients contrib/monitoring)
book="$CARGO_TARGET_DIR/book"
tree="$CARGO_TARGET_DIR/book-pages"

install_mdbook() {
  [[ "$(mdbook --version 2>/dev/null)" == "mdbook v$MDBOOK_VERSION" ]] ||
    cargo install mdbook --version "=$MDBOOK_VERSION" --locked --no-default-features --features search \
      --root "$CARGO_TARGET_DIR/tools"
}

# The pages lie there as they do in the repository, so that a link between them is right in both. SUMMARY.md has to be
# at the top: its links, which are right in docs/, lead into it.
stage() {
  rm -rf "$tree" "$book"
  mkdir -p "$tree/src"
  tar --create --exclude=target --exclude=node_modules "${PAGES[@]}" | tar --extract --directory "$tree/src"
  mv "$tree/src/docs/book.toml" "$tree"
  sed -E 's|\]\(|&docs/|; s|\]\(docs/\.\./|](|' docs/SUMMARY.md >"$tree/src/SUMMARY.md"
  rm "$tree/src/docs/SUMMARY.md"
}

build() {
  local log="$tree/log"
  mdbook build "$tree" --dest-dir "$book" 2>&1 | tee "$log"
  ! grep -E 'WARN|ERROR' "$log" >/dev/null || fail "the book has warnings"
  # What mdBook writes to index.html, and links to as README.html.
  local page
  (cd "$tree/src" && find . -name README.md) | while read -r page; do
    [[ ! -e "$book/${page%README.md}index.html" ]] || cp "$book/${page%README.md}index.html" "$book/${page%md}html"
  done
}

# What pages link to, and is not there. toc.html and 404.html are written for any folder.
broken_links() {
  local page link
  find . -name '*.html' ! -name toc.html ! -name 404.html | while read -r page; do
    grep -oE '(href|src)="[^"]+"' "$page" | sed -E 's/^[a-z]+="//; s/["#?].*//' | sort -u | while read -r link; do
      [[ -z "$link" || "$link" == *:* || -e "$(dirname "$page")/$link" ]] || echo "$page: $link"
    done
  done
}

install_mdbook
stage
build
broken=$(cd "$book" && broken_links)
[[ -z "$broken" ]] || fail "links of the book lead nowhere:
$broken"
echo "pg_expiry: the book is $book/index.html"
