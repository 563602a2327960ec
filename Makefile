# Builds, checks and measures Tidemill. `make help` lists the targets.
#
# `make demo` and `make test` work on a fresh machine with Rust, Python 3.11 or newer and a C toolchain.
# Crates and wheels come from the package registries that cargo and pip are set up for.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.tools
# Features of the crate `python`. `kafka-tls` needs the headers of OpenSSL; `kafka-tls-vendored` also builds OpenSSL.
FEATURES ?=
comma := ,
CASES ?= 20000
KILLS ?= 2000
RECOVERY_KILLS ?= 300
PROCESS_KILLS ?= 300
NETWORK_FAULTS ?= 100
CYCLES ?= 100
TOPIC_CASES ?= 200
TEST_JOBS ?= 3
HOURS ?= 2
FUZZ_SECONDS ?= 30
VOTES ?= --events 100000 --every 4000 --repeat 3
# The oldest Rust that the workspace supports, as the name of a toolchain: 1.95 in Cargo.toml is 1.95.0 here.
MSRV := $(shell sed -n 's/^rust-version = "\([0-9]*\.[0-9]*\)"$$/\1.0/p; s/^rust-version = "\([0-9]*\.[0-9]*\.[0-9]*\)"$$/\1/p' Cargo.toml)
# maturin sets these two variables for pyo3's build script. Other values compile pyo3 and all crates above it again,
# and so does the next call of maturin. If maturin stores the file elsewhere, clippy compiles these crates once more.
AS_BUILT = $(addprefix PYO3_BUILD_EXTENSION_MODULE=1 PYO3_CONFIG_FILE=,$(firstword $(wildcard $(CURDIR)/target/maturin/pyo3-config-*.txt)))
SERVER_TESTS := cargo test --release --workspace --quiet
SECURE_TESTS := $(SERVER_TESTS) --features tidemill-kafka/tls --test secure

.DEFAULT_GOAL := help
.PHONY: help setup engine demo docs wheel test-wheel test test-rust test-python lint msrv audit release soak soak-servers seed defects loom fuzz miri histories test-servers beside-servers bench-peers clean

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

$(STAMP): python/pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("Tidemill needs Python 3.11 or newer") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -c 'import tomllib; p = tomllib.load(open("python/pyproject.toml", "rb"))["project"]; print(*p["dependencies"], *p["optional-dependencies"]["dev"], sep="\n")' > $(VENV)/requirements.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -r $(VENV)/requirements.txt
	touch $(STAMP)

# `testing` adds functions for tests, such as the reference executor. Wheels don't have it.
DEVELOP := PIP_QUIET=1 VIRTUAL_ENV=$(CURDIR)/$(VENV) $(CURDIR)/$(BIN)/maturin develop --release --features testing$(if $(FEATURES),$(comma)$(FEATURES))

# The two packages share all crates. The second one adds the benchmarks, and another link.
setup: engine ## Build the engine and the benchmarks into .venv, incrementally.
	cd bench/python && $(DEVELOP)

engine: $(STAMP) ## Build the engine into .venv, without the benchmarks.
	cd python && $(DEVELOP)

# Runs the ledger, kills it midway, starts it again, and compares the outcome with an undisturbed run.
demo: engine ## Run fifteen months of bank payments, with a crash midway.
	$(BIN)/tidemill demo --dir target/demo

# Tests in Rust and in Python run side by side, because neither keeps two cores busy. The Rust tests print into a file,
# which is shown last.
test: setup lint docs ## Run lint, the site and all tests that need no servers.
	cargo test --release --workspace --no-run
	@$(MAKE) --no-print-directory test-rust > target/test-rust.log 2>&1 & rust=$$!; trap "kill $$rust" INT TERM; \
	$(MAKE) --no-print-directory test-python; python=$$?; wait $$rust; rust=$$?; \
	cat target/test-rust.log; exit $$((python | rust))

# mypy and pyright check the examples, a new app and a typed program as users would; pyright needs node.
lint: setup ## Check style, types, prose and generated pages.
	cargo fmt --all --check
	$(AS_BUILT) cargo clippy --release --workspace --all-targets --quiet -- -D warnings
	cd python && ../$(BIN)/ruff check --quiet . && ../$(BIN)/ruff format --check --quiet .
	cd python && ../$(BIN)/ruff check --quiet --config pyproject.toml --ignore C408 ../examples
	cd python && ../$(BIN)/ruff format --check --quiet --config pyproject.toml ../examples
	cd python && ../$(BIN)/ruff check --quiet --config pyproject.toml ../servers ../bench/python
	cd python && ../$(BIN)/ruff format --check --quiet --config pyproject.toml ../servers ../bench/python
	rm -rf target/starter && $(BIN)/tidemill new target/starter > /dev/null
	cd python && ../$(BIN)/mypy --strict tidemill ../bench/python/tidemill_bench ../examples
	cd python && ../$(BIN)/mypy --strict --warn-unreachable tests/typed ../target/starter
	@if command -v node > /dev/null && $(BIN)/pyright --version > /dev/null 2>&1; then set -x; cd python && ../$(BIN)/pyright; \
	else echo "pyright is left out: it needs node, and the npm registry at its first run"; fi
	$(BIN)/ruff check --quiet --config python/pyproject.toml tools docs/conf.py
	$(BIN)/ruff format --check --quiet --config python/pyproject.toml tools docs/conf.py
	$(BIN)/python tools/prose.py
	$(BIN)/python tools/reference.py --check
	$(BIN)/python tools/defects.py --check
	$(BIN)/codespell --toml tools/codespell.toml $$(git ls-files '*.md' '*.py' '*.rs')

# Its own target directory keeps the usual builds, which have other flags and perhaps another compiler.
msrv: ## Check the workspace with the oldest Rust that it supports.
	cargo +$(MSRV) check --workspace --all-targets --locked --target-dir target/msrv

# The databases of vulnerabilities are on the internet. STRICT=1 fails if one of them can't be reached.
audit: $(STAMP) ## Check licences, sources and known vulnerabilities of all dependencies.
	$(BIN)/pip install --quiet --disable-pip-version-check pip-audit==2.10.1
	$(BIN)/python tools/audit.py $(if $(STRICT),--strict)

# For each Linux target, one wheel of each package goes into dist. Wheels run on any glibc from 2.17 or any musl from
# 1.2 on, and include Kafka with TLS, S3, and the licences of all crates. pip installs Zig, which compiles C and links.
# librdkafka finds it by CC; by itself it would take the compiler for this machine's C library. Build wheels for macOS
# there: see RELEASING.md.
WHEELS ?= x86_64-unknown-linux-gnu:manylinux_2_17 x86_64-unknown-linux-musl:musllinux_1_2
WHEEL_FEATURES := kafka-tls-vendored
# librdkafka's list of exported symbols has some that only its tests have, which Zig's linker refuses otherwise.
ZIG_CC := -fno-sanitize=all -Wl,--undefined-version
wheel: $(STAMP) ## Build wheels for Linux into dist.
	$(BIN)/pip install --quiet --disable-pip-version-check ziglang==0.17.1 cargo-zigbuild==0.24.1
	$(BIN)/python tools/notices.py
	set -e; for wheel in $(WHEELS); do \
	  rustup target add $${wheel%%:*}; \
	  zig=$$(echo $${wheel%%:*} | sed s/-unknown//); \
	  case $$wheel in *:manylinux_*) zig=$$zig.$$(echo $${wheel##*:manylinux_} | tr _ .);; esac; \
	  cc=$(CURDIR)/target/wheel/$$zig-cc; mkdir -p $(CURDIR)/target/wheel; \
	  printf '#!/bin/sh\nexec $(CURDIR)/$(BIN)/cargo-zigbuild zig cc -- $(ZIG_CC) -target %s "$$@"\n' $$zig > $$cc; \
	  chmod +x $$cc; \
	  for package in python bench/python; do \
	    cd $(CURDIR)/$$package; CC=$$cc PATH=$(CURDIR)/$(BIN):$$PATH \
	    $(CURDIR)/$(BIN)/maturin build --release --zig --locked \
	      --features $(WHEEL_FEATURES) --target $${wheel%%:*} --compatibility $${wheel##*:} \
	      --target-dir $(CURDIR)/target/wheel --out $(CURDIR)/dist; \
	  done; \
	done

# Installs the wheels into empty environments of the oldest and newest Python here, and runs the demo and a new app.
test-wheel: wheel ## Install the wheels as a new user would, and try it.
	$(BIN)/python tools/try_wheel.py dist/*manylinux*.whl

# RELEASING.md has the steps before and after. DRY_RUN=1 changes nothing.
release: $(STAMP) ## Set VERSION, date the changelog, and fill dist.
	$(BIN)/pip install --quiet --disable-pip-version-check cyclonedx-bom==7.5.0
	$(BIN)/python tools/release.py $(if $(DRY_RUN),--dry-run) $(VERSION)

docs: setup ## Build the site, target/docs/index.html, and check its links.
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going docs target/docs
	$(BIN)/python tools/site.py target/docs

test-rust: ## Run the Rust tests.
	cargo test --release --workspace --quiet

# Most tests wait for processes most of the time. So a small machine runs one more test at once than it has cores.
test-python: setup ## Run the Python tests.
	cd python && ../$(BIN)/python -m pytest -n $(TEST_JOBS) --dist loadfile

# This runs more seeds than a build does. It kills an app KILLS times, and RECOVERY_KILLS times while it recovers. It
# kills or suspends PROCESS_KILLS processes of clusters, and puts NETWORK_FAULTS between their hosts, which needs root.
# It kills CYCLES workers under each of three benchmarks, watches memory for HOURS, and compares the adaptive strategy
# with all others. One in twenty of the CASES also goes from one process to several and back, with crashes; TIDEMILL_SEED
# repeats one. Kills, faults, cycles and grids can be stopped and continued. With the CASES above, the engine alone
# sees some 70,000 crashes and 30,000 damaged files; the tests print the numbers.
soak: setup defects loom miri fuzz ## Kill, damage, watch and compare for hours.
	TIDEMILL_CASES=$(CASES) cargo test --release -p tidemill-txn -p tidemill-engine -p tidemill-table -p tidemill-log -p tidemill-snapshot -p tidemill-connect -p tidemill-host -p tidemill-sim -p tidemill-cluster -p tidemill-function -- --show-output
	cd python && TIDEMILL_CASES=$(CASES) ../$(BIN)/python -m pytest -q tests/test_same_outcome.py
	cd python && ../$(BIN)/python -m tests.kill.driver --kills $(KILLS) --recovery-kills $(RECOVERY_KILLS) --progress ../target/soak-kills.json
	cd python && ../$(BIN)/python -m tests.kill.processes --kills $(PROCESS_KILLS) --progress ../target/soak-processes.json
	cd python && ../$(BIN)/python -m tests.kill.network --faults $(NETWORK_FAULTS) --progress ../target/soak-network.json
	cd python && ../$(BIN)/python -m tests.kill.cycles --cycles $(CYCLES) --progress ../target/soak-cycles.json
	cd python && ../$(BIN)/python -m tests.kill.steady --hours $(HOURS) --out ../target/soak-steady.jsonl
	$(BIN)/tidemill bench grid --workload sl --cells full --out target/soak-grid-sl.jsonl --plot target/soak-grid-sl.svg
	$(BIN)/tidemill bench grid --workload gs --cells full --out target/soak-grid-gs.jsonl --plot target/soak-grid-gs.svg

seed: ## Run the simulated cluster once with SEED, and print all events.
	TIDEMILL_SEED=$(SEED) cargo test --release --workspace --test simulated whatever -- --nocapture

# Files tests/defects.toml list the defects. The copy and its builds are in target/defects.
defects: $(STAMP) ## Inject each known defect into a copy of the sources, and check that tests find it.
	$(BIN)/python tools/defects.py

loom: ## Try every order of threads in small models of the lock-free parts.
	RUSTFLAGS="--cfg loom" cargo test --release -p tidemill-txn -p tidemill-table --lib --target-dir target/loom loom_tests

# libFuzzer runs with AddressSanitizer, FUZZ_SECONDS for each decoder. This needs the nightly compiler and
# `cargo install cargo-fuzz`. Inputs that reach more code stay in target/fuzz/corpus, failing ones in fuzz/artifacts.
FUZZ = cargo +nightly fuzz
FUZZ_TARGETS ?= $(shell $(FUZZ) list)
fuzz: ## Fuzz every decoder of outside bytes, FUZZ_SECONDS each.
	$(FUZZ) build --target-dir target/fuzz
	@set -e; for target in $(FUZZ_TARGETS); do \
	  mkdir -p target/fuzz/corpus/$$target; dict=fuzz/dicts/$$target.dict; test -e $$dict || dict=; \
	  echo "$$target for $(FUZZ_SECONDS) s"; \
	  $(FUZZ) run --target-dir target/fuzz $$target target/fuzz/corpus/$$target fuzz/seeds/$$target -- \
	    -max_total_time=$(FUZZ_SECONDS) -timeout=20 -rss_limit_mb=1024 -malloc_limit_mb=256 -print_final_stats=1 \
	    $${dict:+-dict=$$dict} > target/fuzz/$$target.log 2>&1 || { tail -40 target/fuzz/$$target.log; exit 1; }; \
	  grep -h '^Done' target/fuzz/$$target.log; \
	done

# Miri finds undefined behaviour, races and leaks in slots, versions and their logs, in rows in place, and in closures
# that every strategy executes on two threads. It needs the nightly compiler with the components miri and rust-src. Miri
# executes no machine code, so transactions are interpreted.
MIRI := MIRIFLAGS=-Zmiri-disable-isolation CARGO_TARGET_DIR=$(CURDIR)/target/miri cargo +nightly miri test --quiet
miri: ## Look for undefined behaviour with Miri.
	$(MIRI) -p tidemill-table --lib -- a_row_becomes only_what_is_wanted versions_that_are_taken_back a_number_that_is \
	  a_row_that_does_not_fit keys_that_are_alike what_was_taken_belongs no_key_is_loaded floats_as_keys \
	  rows_in_place_are_taken_back
	$(MIRI) -p tidemill-txn --no-default-features --test closures_in_order

# The checker, porcupine, is a Go module that others have written.
histories: ## Check histories of the engine with an independent checker.
	rm -rf target/histories && mkdir -p target/histories
	TIDEMILL_HISTORIES=$(CURDIR)/target/histories TIDEMILL_CASES=$(CASES) cargo test --release -p tidemill-engine --test order what_clients_see
	cd engine/tests/order/porcupine && go run . $(CURDIR)/target/histories/*.jsonl

# servers/run.py installs the servers once into target/servers (with mvn, java, go and openssl), starts them for this
# target, and ends them. TLS to brokers needs the headers of OpenSSL (libssl-dev). Only librdkafka, the crate `kafka`
# and the test `secure` are built with TLS. All else is what `make test` has built.
test-servers: setup ## Test with a real Kafka broker, schema registry and S3 server.
	@test -e /usr/include/openssl/ssl.h || pkg-config --exists openssl || { echo "make test-servers needs the headers of OpenSSL: apt-get install libssl-dev pkg-config"; exit 1; }
	$(SERVER_TESTS) --test server --no-run
	$(SECURE_TESTS) --no-run
	$(BIN)/python servers/run.py -- $(MAKE) --no-print-directory beside-servers

# Tests that kill the broker run first and by themselves: the broker starts sooner while it has few topics. All other
# tests run side by side, because they wait most of the time.
beside-servers:
	$(SERVER_TESTS) --test server -- --ignored alone:: --test-threads=1
	$(SERVER_TESTS) --test server -- --ignored --skip alone:: --test-threads=6
	$(SECURE_TESTS) -- --ignored --test-threads=6
	cd python && ../$(BIN)/python -m pytest -m 'servers and alone'
	cd python && ../$(BIN)/python -m pytest -n $(TEST_JOBS) -m 'servers and not alone'

# The log is in a real Kafka and the snapshots are in a real S3 server. More random programs run from topic to topic.
soak-servers: setup ## Kill workers whose log and snapshots are on real servers.
	TIDEMILL_CASES=$(TOPIC_CASES) $(BIN)/python servers/run.py --kafka -- $(SERVER_TESTS) --test server -- --ignored any_program --show-output
	cd python && ../$(BIN)/python ../servers/run.py -- ../$(BIN)/python -m tests.kill.cycles --servers --every 10 --cycles $(CYCLES) --progress ../target/soak-cycles-servers.json

# Two runs compare Tidemill with the tight serial loop of a workload. Then Leaderboard Maintenance runs on SQLite and
# PostgreSQL, from their published packages. PostgreSQL's server must be installed; one starts in a temporary folder.
# VOTES has the options of the show: see bench/peers.
bench-peers: setup ## Measure a serial loop, PostgreSQL and SQLite beside Tidemill.
	$(BIN)/tidemill bench sl --program rust --threads 1 --strategy serial --keys 100000 --json
	$(BIN)/tidemill bench sl --program traced --threads 1 --strategy serial --keys 100000 --json
	cd bench/peers && cargo build --release --locked --target-dir $(CURDIR)/target/peers
	target/peers/release/tidemill-peers --tidemill $(CURDIR)/$(BIN)/tidemill $(VOTES)

clean: ## Remove all builds, .venv, and the data of apps in this folder.
	rm -rf target $(VENV) out *.tidemill
