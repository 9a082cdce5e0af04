# Everything that people and the continuous integration run. It needs a Rust toolchain; `scripts/packages`
# installs the rest with apt-get, and only what is missing.

SHELL := /bin/bash
CARGO ?= cargo
DEMO_ARGS ?=
BENCH_ARGS ?= --quick
PEERS_ARGS ?= --quick

DEMO = $(CARGO) build --profile demo --locked -p understudy --no-default-features
DEMO_PROGRAM = "$$(scripts/target-dir)"/demo/understudy demo

.DEFAULT_GOAL := help
.PHONY: help packages build deb demo demo-past demo-proxy demo-mirror demo-vm demo-mariadb bench bench-peers check sim sim-zones sim-cassandra sim-standby sim-node sim-proxy sim-mirror sim-vm test test-unit test-system \
	test-versions test-mirror-regress test-upgrade test-servers test-debezium test-vm test-package test-cassandra test-drivers test-suites test-crowd clean

help: ## List what there is to run.
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

packages: ## Install the missing Debian packages (PostgreSQL, FUSE, a linker).
	@scripts/packages

build: packages ## Build the release programs: target/release/understudy, and understudy-bench.
	@$(CARGO) build --release --locked -p understudy -p bench
	@release="$$(scripts/target-dir)"/release; scripts/split-debug "$$release"/understudy "$$release"/understudy-bench

deb: packages ## Build a Debian package, with systemd units; optimized as a whole, which takes long.
	@$(CARGO) build --profile dist --locked -p understudy
	@scripts/deb

demo: ## Kill a busy PostgreSQL, and see another one take over. DEMO_ARGS="--duration 60s" and so on.
	@scripts/packages --demo
	@$(DEMO)
	@$(DEMO_PROGRAM) $(DEMO_ARGS)

demo-past: ## Drop a table under load, and get it back by a branch, a restore and a rewind.
	@scripts/packages --demo
	@$(DEMO) --features backup
	@$(DEMO_PROGRAM) --past $(DEMO_ARGS)

demo-proxy: packages ## The same with clients that go through a proxy: a takeover is a pause.
	@$(DEMO) --features proxy
	@$(DEMO_PROGRAM) --proxy $(DEMO_ARGS)

demo-mirror: packages ## Kill servers of a mirror: two independent copies of a database.
	@$(DEMO) --features mirror
	@$(DEMO_PROGRAM) --mirror $(DEMO_ARGS)

demo-vm: ## Kill the host of a protected virtual machine; needs root, and /dev/kvm or patience.
	@scripts/packages --demo --vm
	@$(DEMO) --features vm
	@$(DEMO_PROGRAM) --vm $(DEMO_ARGS)

demo-mariadb: ## Kill a busy MariaDB, and see it restarted on another node.
	@scripts/packages --demo --mariadb
	@$(DEMO) --features engine
	@$(DEMO_PROGRAM) --engine mariadb $(DEMO_ARGS)

bench: build ## Compare with stock PostgreSQL. BENCH_ARGS="" is the long run.
	@"$$(scripts/target-dir)"/release/understudy bench pgbench $(BENCH_ARGS)

bench-peers: build ## Compare with PostgreSQL alone and Patroni; needs root. PEERS_ARGS="" is the long run.
	@scripts/peers
	@"$$(scripts/target-dir)"/release/understudy bench peers $(PEERS_ARGS)

check: packages ## Formatting, lints, and the documentation of the code.
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" $(CARGO) doc --workspace --no-deps --locked

test-unit: packages ## Run the tests that need no cluster.
	@CARGO="$(CARGO)" scripts/unit-tests

test-system: packages ## Test whole clusters: they are started, loaded, killed and verified.
	scripts/system-tests

test-versions: packages ## Test whole clusters with PostgreSQL 16 to 18, and a minor upgrade; downloads the servers.
	scripts/system-tests versions

test-upgrade: packages ## Test the release before and this one in one cluster, upgraded and back; builds that release.
	scripts/system-tests upgrade

test-servers: packages ## Test clusters with MySQL and with a newer MariaDB, which are downloaded.
	scripts/system-tests servers

test-vm: packages ## Test whole virtual machines in all ways, made and run by QEMU; takes long without KVM; needs root.
	scripts/system-tests vm

test-debezium: packages ## Test Debezium's engine as a reader of changes over takeovers; Maven fetches it.
	scripts/system-tests debezium

test-package: deb ## Test the Debian package, installed and run by a systemd of its own; needs root.
	scripts/package-test

test-drivers: packages ## Test psycopg, pgjdbc and pgx through the proxy; Go fetches pgx.
	scripts/proxy-drivers

test-suites: packages ## Run pgx', SQLAlchemy's, asyncpg's and pgjdbc's own tests through the proxy, and directly; takes long.
	@scripts/packages --drivers --download
	scripts/proxy-suites $(SUITES)

test-mirror-regress: packages ## Run PostgreSQL's own regression suite through a mirror, and directly; downloads it.
	scripts/mirror-regress

test-crowd: packages ## Test 10,000 clients at a proxy, and those among them who mean harm.
	$(CARGO) build --locked -p proxy --example serve
	$(CARGO) test --locked -p proxy --test real -- --ignored --exact --nocapture \
		crowd::ten_thousand_clients_are_served_beside_those_who_mean_harm

test-cassandra: packages ## Test on real Cassandra nodes, which are downloaded.
	scripts/cassandra-tests

sim: ## Simulate the block protocol: SEEDS=100000 schedules from FIRST=0 on, or SEED=7 [TRACE=1] [FLAW=NoFence] for one.
	SEEDS="$(SEEDS)" FIRST="$(FIRST)" SEED="$(SEED)" TRACE="$(TRACE)" FLAW="$(FLAW)" $(CARGO) test --release --locked -p dax --lib \
		simulation::tests::many -- --ignored --exact --nocapture

sim-zones: ## Simulate zones over engines in memory: SEEDS=20000 histories from FIRST=0 on, or SEED=7 [TRACE=1] [FLAW=MetaNumberAlone] for one.
	SEEDS="$(SEEDS)" FIRST="$(FIRST)" SEED="$(SEED)" TRACE="$(TRACE)" FLAW="$(FLAW)" $(CARGO) test --release --locked -p store --lib \
		simulation::tests::many -- --ignored --exact --nocapture

sim-cassandra: ## Simulate fencing on Cassandra: SEEDS=20000 schedules from FIRST=0 on, or SEED=7 [TRACE=1] [FLAW=NoGate] for one.
	SEEDS="$(SEEDS)" FIRST="$(FIRST)" SEED="$(SEED)" TRACE="$(TRACE)" FLAW="$(FLAW)" $(CARGO) test --release --locked -p cassandra --features client --lib \
		simulation::tests::many -- --ignored --exact --nocapture

sim-standby: ## Simulate standbys behind a model of PostgreSQL: SEEDS=12000 histories from FIRST=0 on, or SEED=7 [TRACE=1] [FLAW=NamesTaken] for one.
	SEEDS="$(SEEDS)" FIRST="$(FIRST)" SEED="$(SEED)" TRACE="$(TRACE)" FLAW="$(FLAW)" $(CARGO) test --release --locked -p volume --lib \
		standby::simulation::tests::many -- --ignored --exact --nocapture

sim-node: ## Simulate nodes that take over: SEEDS=20000 histories from FIRST=0 on, or SEED=7 [TRACE=1] [FLAW=NoFence] for one.
	SEEDS="$(SEEDS)" FIRST="$(FIRST)" SEED="$(SEED)" TRACE="$(TRACE)" FLAW="$(FLAW)" $(CARGO) test --release --locked -p node --lib \
		machine::simulation::tests::many -- --ignored --exact --nocapture

sim-proxy: ## Simulate the proxy's sessions: SEEDS=20000 histories from FIRST=0 on, or SEED=7 [TRACE=1] [FLAW=NoHorizon] for one.
	SEEDS="$(SEEDS)" FIRST="$(FIRST)" SEED="$(SEED)" TRACE="$(TRACE)" FLAW="$(FLAW)" $(CARGO) test --release --locked -p proxy --lib \
		core::simulation::tests::many -- --ignored --exact --nocapture

sim-mirror: ## Simulate two replication managers and their members: SEEDS=20000 histories from FIRST=0 on, or SEED=7 [TRACE=1] [FLAW=GivenTwice] for one.
	SEEDS="$(SEEDS)" FIRST="$(FIRST)" SEED="$(SEED)" TRACE="$(TRACE)" FLAW="$(FLAW)" $(CARGO) test --release --locked -p mirror --lib \
		core::simulation::tests::many -- --ignored --exact --nocapture

sim-vm: ## Simulate two hosts of a protected machine: SEEDS=20000 histories from FIRST=0 on, or SEED=7 [TRACE=1] [FLAW=PageDropped] for one.
	SEEDS="$(SEEDS)" FIRST="$(FIRST)" SEED="$(SEED)" TRACE="$(TRACE)" FLAW="$(FLAW)" $(CARGO) test --release --locked -p vm --lib \
		core::simulation::tests::many -- --ignored --exact --nocapture

test: check test-unit test-system ## Run all tests, as the continuous integration does.
	@echo "make test: all passed"

clean: ## Remove everything that was built.
	$(CARGO) clean
