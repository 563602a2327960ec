# Tidemill. `make demo` and `make test` do everything on a fresh machine with Rust, Python 3.11+ and
# a C toolchain; crates and wheels come from the package registries that cargo and pip are set up for.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.tools
# Of the crate `python`: kafka-tls needs OpenSSL's headers, kafka-tls-vendored builds OpenSSL, too.
FEATURES ?=
CASES ?= 20000
KILLS ?= 2000
RECOVERY_KILLS ?= 300
PROCESS_KILLS ?= 300
NETWORK_FAULTS ?= 100
CYCLES ?= 100
TOPIC_CASES ?= 200
TEST_JOBS ?= 3
HOURS ?= 2
VOTES ?= --events 100000 --every 4000 --repeat 3
# What maturin says to pyo3's build: said otherwise, pyo3 and all behind it are built once more, and again by maturin.
# Where maturin keeps that elsewhere, it is.
AS_BUILT = $(addprefix PYO3_BUILD_EXTENSION_MODULE=1 PYO3_CONFIG_FILE=,$(firstword $(wildcard $(CURDIR)/target/maturin/pyo3-config-*.txt)))
SERVER_TESTS := cargo test --release --workspace --quiet
SECURE_TESTS := $(SERVER_TESTS) --features tidemill-kafka/tls --test secure

.PHONY: setup demo docs wheel test-wheel test test-rust test-python lint soak soak-servers seed loom histories test-servers beside-servers bench-peers clean

$(STAMP): python/pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("Tidemill needs Python 3.11 or newer") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -c 'import tomllib; p = tomllib.load(open("python/pyproject.toml", "rb"))["project"]; print(*p["dependencies"], *p["optional-dependencies"]["dev"], sep="\n")' > $(VENV)/requirements.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -r $(VENV)/requirements.txt
	touch $(STAMP)

# Builds the extension into .venv, incrementally.
setup: $(STAMP)
	cd python && PIP_QUIET=1 VIRTUAL_ENV=$(CURDIR)/$(VENV) $(CURDIR)/$(BIN)/maturin develop --release $(if $(FEATURES),--features $(FEATURES))

# Runs the ledger, kills it midway, starts it again, and compares with an undisturbed run.
demo: setup
	$(BIN)/tidemill demo --dir target/demo

test: setup lint docs test-rust test-python

lint: setup
	cargo fmt --all --check
	$(AS_BUILT) cargo clippy --release --workspace --all-targets --quiet -- -D warnings
	cd python && ../$(BIN)/ruff check --quiet . && ../$(BIN)/ruff format --check --quiet .
	cd python && ../$(BIN)/ruff check --quiet --config pyproject.toml --ignore C408 ../examples
	cd python && ../$(BIN)/ruff format --check --quiet --config pyproject.toml ../examples
	cd python && ../$(BIN)/ruff check --quiet --config pyproject.toml ../servers
	cd python && ../$(BIN)/ruff format --check --quiet --config pyproject.toml ../servers
	cd python && ../$(BIN)/mypy --strict tidemill
	$(BIN)/ruff check --quiet --config python/pyproject.toml tools docs/conf.py
	$(BIN)/ruff format --check --quiet --config python/pyproject.toml tools docs/conf.py
	$(BIN)/python tools/prose.py
	$(BIN)/python tools/reference.py --check
	$(BIN)/codespell --toml tools/codespell.toml $$(git ls-files '*.md' '*.py' '*.rs')

# Wheels for Linux, into dist: one for each target. They run on any glibc from 2.17 and any musl from 1.2 on, with
# Kafka and S3. Zig is the linker, which pip installs. A wheel for macOS has to be built there, with `maturin build`.
WHEELS ?= x86_64-unknown-linux-gnu:manylinux_2_17 x86_64-unknown-linux-musl:musllinux_1_2
wheel: $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check ziglang==0.17.1 cargo-zigbuild==0.24.1
	set -e; for wheel in $(WHEELS); do \
	  rustup target add $${wheel%%:*}; \
	  cd $(CURDIR)/python; PATH=$(CURDIR)/$(BIN):$$PATH $(CURDIR)/$(BIN)/maturin build --release --zig --locked \
	    --target $${wheel%%:*} --compatibility $${wheel##*:} --target-dir $(CURDIR)/target/wheel --out $(CURDIR)/dist; \
	done

# Installs the wheel into empty environments of the oldest and newest Python here, and runs the demo and a new app.
test-wheel: wheel
	$(BIN)/python tools/try_wheel.py dist/tidemill-*manylinux*.whl

# The site: target/docs/index.html.
docs: setup
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going docs target/docs

test-rust:
	cargo test --release --workspace --quiet

# Most tests wait for processes most of the time, so one more runs than there are cores on a small machine.
test-python: setup
	cd python && ../$(BIN)/python -m pytest -n $(TEST_JOBS) --dist loadfile

# More seeds than a build runs, an app that is killed KILLS times, RECOVERY_KILLS of them while it
# recovers, PROCESS_KILLS processes of clusters that are killed or stand still, NETWORK_FAULTS between
# their hosts (as root), CYCLES workers killed under each of three benchmarks, HOURS of watching memory, and
# the adaptive strategy beside all others; kills, faults, cycles and grids can be stopped and go on. With the CASES above the engine alone sees
# some 70,000 crashes and 30,000 files that are damaged; the tests print how many.
soak: setup loom
	TIDEMILL_CASES=$(CASES) cargo test --release -p tidemill-txn -p tidemill-engine -p tidemill-table -p tidemill-log -p tidemill-snapshot -p tidemill-connect -p tidemill-host -p tidemill-sim -- --show-output
	cd python && TIDEMILL_CASES=$(CASES) ../$(BIN)/python -m pytest -q tests/test_same_outcome.py
	cd python && ../$(BIN)/python -m tests.kill.driver --kills $(KILLS) --recovery-kills $(RECOVERY_KILLS) --progress ../target/soak-kills.json
	cd python && ../$(BIN)/python -m tests.kill.processes --kills $(PROCESS_KILLS) --progress ../target/soak-processes.json
	cd python && ../$(BIN)/python -m tests.kill.network --faults $(NETWORK_FAULTS) --progress ../target/soak-network.json
	cd python && ../$(BIN)/python -m tests.kill.cycles --cycles $(CYCLES) --progress ../target/soak-cycles.json
	cd python && ../$(BIN)/python -m tests.kill.steady --hours $(HOURS) --out ../target/soak-steady.jsonl
	$(BIN)/tidemill bench grid --workload sl --cells full --out target/soak-grid-sl.jsonl --plot target/soak-grid-sl.svg
	$(BIN)/tidemill bench grid --workload gs --cells full --out target/soak-grid-gs.jsonl --plot target/soak-grid-gs.svg

# One run of the simulated cluster, with all that happens in it.
seed:
	TIDEMILL_SEED=$(SEED) cargo test --release --workspace --test cluster whatever -- --nocapture

# Every order in which threads may meet in the lock-free parts, in small models.
loom:
	RUSTFLAGS="--cfg loom" cargo test --release -p tidemill-txn -p tidemill-table --lib --target-dir target/loom loom_tests

# Histories of the engine under a checker that others have written: porcupine, a module of Go.
histories:
	rm -rf target/histories && mkdir -p target/histories
	TIDEMILL_HISTORIES=$(CURDIR)/target/histories TIDEMILL_CASES=$(CASES) cargo test --release -p tidemill-engine --test order what_clients_see
	cd engine/tests/order/porcupine && go run . $(CURDIR)/target/histories/*.jsonl

# What needs a Kafka broker and an S3 server, with real ones: servers/run.py installs them once into
# target/servers (with mvn, java, go and openssl), starts them for this and ends them. TLS to brokers needs
# OpenSSL's headers (libssl-dev): only librdkafka, the crate `kafka` and the test `secure` are built with it,
# all else is what `make test` has built.
test-servers: setup
	@test -e /usr/include/openssl/ssl.h || pkg-config --exists openssl || { echo "make test-servers needs the headers of OpenSSL: apt-get install libssl-dev pkg-config"; exit 1; }
	$(SERVER_TESTS) --test server --no-run
	$(SECURE_TESTS) --no-run
	$(BIN)/python servers/run.py -- $(MAKE) --no-print-directory beside-servers

# What kills the broker is alone, and first: it starts sooner while it has few topics. All else waits most of
# the time, and is run side by side.
beside-servers:
	$(SERVER_TESTS) --test server -- --ignored alone:: --test-threads=1
	$(SERVER_TESTS) --test server -- --ignored --skip alone:: --test-threads=6
	$(SECURE_TESTS) -- --ignored --test-threads=6
	cd python && ../$(BIN)/python -m pytest -m 'servers and alone'
	cd python && ../$(BIN)/python -m pytest -n $(TEST_JOBS) -m 'servers and not alone'

# The same cycles with the log in a real Kafka and snapshots in a real S3 server, and more programs from topic
# to topic.
soak-servers: setup
	TIDEMILL_CASES=$(TOPIC_CASES) $(BIN)/python servers/run.py --kafka -- $(SERVER_TESTS) --test server -- --ignored any_program --show-output
	cd python && ../$(BIN)/python ../servers/run.py -- ../$(BIN)/python -m tests.kill.cycles --servers --every 10 --cycles $(CYCLES) --progress ../target/soak-cycles-servers.json

# Figures beside other systems, from their published packages: the tight serial loop of each workload,
# and Leaderboard Maintenance on PostgreSQL (its server must be installed; one is started in a temporary
# folder) and SQLite. VOTES is what shapes the show; see bench/peers.
bench-peers: setup
	$(BIN)/tidemill bench sl --program rust --threads 1 --strategy serial --keys 100000 --json
	$(BIN)/tidemill bench sl --program traced --threads 1 --strategy serial --keys 100000 --json
	cd bench/peers && cargo build --release --locked --target-dir $(CURDIR)/target/peers
	target/peers/release/tidemill-peers --tidemill $(CURDIR)/$(BIN)/tidemill $(VOTES)

clean:
	rm -rf target $(VENV) out *.tidemill
