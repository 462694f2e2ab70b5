# pg_expiry: everything is set up by itself; `make help` lists the targets.
# What is built or downloaded goes to target/ (besides Debian's packages and cargo's own cache).

export CARGO_TARGET_DIR := $(abspath $(or $(CARGO_TARGET_DIR),target))
export PATH := $(CARGO_TARGET_DIR)/tools/bin:$(PATH)
export CARGO_TERM_PROGRESS_WHEN ?= never

# PG is a major version of PostgreSQL, or `all`; by default the one that is there.
PG ?=
KEEP ?=
TESTS ?=

.PHONY: help all demo test bench lint book install deb test-deb deny fuzz clean

help:
	@echo 'make demo [KEEP=1]          the sample shop on a private server; KEEP=1 leaves the server on'
	@echo 'make test [PG=15|16|17|18|all] [TESTS=name]   the tests, on private servers'
	@echo 'make bench [QUICK=1]        measures it beside what people use instead, an hour and a half, or ten minutes; docs/benchmarks.md'
	@echo '  SCALE=full|quick|tiny  ONLY=backlog,...  PEERS=all|none|redis,...  OUT=folder  REPORT=1 (from the last figures)'
	@echo 'make lint                   rustfmt and clippy, warnings are errors'
	@echo 'make book                   the documents as HTML, in target/book'
	@echo 'make install PG_CONFIG=...  release build into that server'
	@echo 'make all PG_CONFIG=...      the same without putting it there'
	@echo 'make deb [PG=15|16|17|18|all]   a Debian package for that server, in target/deb'
	@echo 'make test-deb [PG=...]      builds it, installs it beside a stock server, and removes it again'
	@echo 'make deny                   licences, duplicates and sources of the crates'
	@echo 'make fuzz [SECONDS=30] [TARGET=...]   feeds what parses users'"'"' texts'
	@echo 'make clean                  removes what was built'

demo:
	@scripts/demo.sh '$(PG)' '$(KEEP)'

test:
	@scripts/test.sh '$(PG)' '$(TESTS)'

bench:
	@SCALE='$(or $(SCALE),$(if $(QUICK),quick))' ONLY='$(ONLY)' PEERS='$(PEERS)' OUT='$(OUT)' REPORT='$(REPORT)' \
	  scripts/bench.sh '$(PG)'

lint:
	@scripts/lint.sh '$(PG)'

book:
	@scripts/book.sh

all install:
	@scripts/install.sh $@ '$(PG_CONFIG)'

deb:
	@scripts/deb.sh '$(PG)'

test-deb: deb
	@scripts/test_deb.sh '$(PG)'

deny:
	@scripts/deny.sh

fuzz:
	@scripts/fuzz.sh '$(SECONDS)' '$(TARGET)'

# A server tree is a link to a folder elsewhere when root's servers cannot be run from here.
clean:
	@for tree in '$(CARGO_TARGET_DIR)'/pg/*/* '$(CARGO_TARGET_DIR)'/servers; do [ ! -L "$$tree" ] || rm -rf "$$(readlink "$$tree")"; done
	cargo clean
