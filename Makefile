# `make help` lists the commands. Each installs what it needs into .venv and target/, and reuses what is valid there.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := $(shell find src -name '*.rs') Cargo.toml Cargo.lock pyproject.toml $(wildcard python/data/purelib/*)
# uv installs the 3 GB in a fifth of pip's CPU time. It does not read pip's settings, so an index in PIP_INDEX_URL is passed on.
UV_INDEX = $(if $(UV_DEFAULT_INDEX),,$(if $(PIP_INDEX_URL),UV_DEFAULT_INDEX='$(PIP_INDEX_URL)'))
UV_INSTALL = $(UV_INDEX) $(BIN)/uv pip install --quiet
INSTALL = $(UV_INSTALL) --python $(BIN)/python
# rustdoc would look for make's jobserver.
CARGO := env -u MAKEFLAGS cargo
# With LINTED, clippy-driver compiles this crate, and lints it meanwhile. `cargo clippy` beside the builds would take 140 more seconds of
# CPU. CLIPPY_ARGS is how `cargo clippy` passes options to it, each with this mark behind it. `make LINTED= TARGET` turns the lints off.
LINTED := RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__
.DEFAULT_GOAL := help
# Thousands of test processes import the same files, so their bytecode is kept even where the environment forbids it.
unexport PYTHONDONTWRITEBYTECODE
# Jobs that are started here stay out of the history of the user.
export XDG_STATE_HOME := $(CURDIR)/target/state
# They need nothing of setuptools, whose .pth file costs each 3 ms of 18 otherwise. Python 3.12 and later have no other distutils.
ifeq ($(shell $(PYTHON) -c 'import sys; print(sys.version_info < (3, 12))' 2>/dev/null),True)
export SETUPTOOLS_USE_DISTUTILS := stdlib
endif
# Most tests wait most of the time, so more of them run than there are cores.
WORKERS ?= 8
# Python tests that start real ranks through each public entry point and take seconds.
SMOKE := tests/python/launch/test_launch.py tests/python/spawn/test_spawn_results.py \
	tests/python/torchrun/test_run_grammar.py tests/python/torchrun/test_run_restart.py \
	tests/python/pytest_plugin/test_pytest_marker.py tests/python/pytest_plugin/test_pytest_outcomes.py \
	tests/python/test_prose.py
.PHONY: help docs site site-version demo check check-python check-stub check-tests test test-full test-pythons wheels lint lint-rust lint-all lint-workflows test-rust test-python test-gpu test-cluster test-ecosystem bench agents faults stops chaos blame plugins fuzz mutants soak hangs clean

help:
	@echo "make demo    two ranks train a small network on real images, on rlaunch and on Paddle's own launcher"
	@echo "make check   format, lints, types, Rust unit tests and invariants, a Python smoke selection"
	@echo "make test    format, lints, types, the docs site, Rust and Python tests; with RLAUNCH_TEST_ALL=1 all variants, as CI runs it"
	@echo "make test-full  all variants and many more random cases, then the soak"
	@echo "make test-pythons  a selection of the tests on every Python from 3.10 on that is found"
	@echo "make test-gpu  what only an NVIDIA GPU can show; fails without one (minutes)"
	@echo "make test-cluster  jobs in a real Slurm cluster of namespaces (root; Debian or Ubuntu; five minutes)"
	@echo "make test-ecosystem  accelerate, Lightning, transformers, TRL, torchmetrics, Paddle's fleet and debugpy on rlaunch (minutes)"
	@echo "make wheels  builds the wheels of all platforms, audits them and runs them in bare systems; writes docs/wheels.md"
	@echo "make docs    builds the documentation site, target/docs/index.html, checks it and looks at it in Chromium"
	@echo "make site-version  the site as a version of it, in the branch gh-pages: VERSION=dev"
	@echo "make bench   speed and memory, side by side with the other launchers; fails when a promise is broken"
	@echo "make agents  how long 10 to 1,000 nodes take to agree, at etcd and at the embedded master; writes docs/agents.md"
	@echo "make faults  the fault matrix on rlaunch and the other launchers; writes docs/fault-matrix.md (an hour or more)"
	@echo "make stops   ways to stop a job, and whether its checkpoint is saved, on all launchers; writes docs/stop-matrix.md (20 minutes; needs what test-cluster needs)"
	@echo "make chaos   half an hour of training under random partitions, freezes and lost machines; writes docs/chaos.md (root)"
	@echo "make blame   whom launchers blame for jobs that fail, side by side; writes docs/blame.md (ten minutes)"
	@echo "make plugins  tests on ranks beside the most used plugins of pytest; writes docs/pytest-plugins.md (ten minutes)"
	@echo "make fuzz    random bytes to every parser of outside bytes, ten minutes each; needs a nightly Rust"
	@echo "make mutants  one small fault at a time in the supervisor and in process membership, which tests have to detect (an hour)"
	@echo "make soak    half an hour of random signals to random processes of random jobs; writes docs/soak.md"
	@echo "make hangs   ten jobs that hang, on rlaunch and on the other launchers; writes docs/hangs.md (an hour)"
	@echo "make clean   removes .venv and target"

# What the tests and the demo need beside the package.
$(VENV)/installed: pyproject.toml
	@command -v cargo >/dev/null || { echo "make: cargo is missing; install Rust 1.88 or later" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet 'uv>=0.9'
	$(INSTALL) --group dev
	touch $@

# PyTorch, for tests alone.
$(VENV)/torch: $(VENV)/installed tests/torch_cpu.py
	$(INSTALL) --no-deps --group torch
	$(BIN)/python tests/torch_cpu.py
	touch $@

# The plugins that docs/reference/python-pytest.md lists, with one version of pytest. Apart, because some of them change every session.
$(VENV)/pytest-8 $(VENV)/pytest-9: $(VENV)/installed
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $@
	$(UV_INSTALL) --python $@/bin/python --group $(@F)
	touch $@

# An environment for each of some plugins, beside which tests on ranks are compared with plain tests.
PLUGIN_TABLE := tests/plugins/plugin_table.py
target/plugins/likely: $(VENV)/built-debug $(PLUGIN_TABLE) tests/plugins/plugin_list.py tests/plugins/conformance.py
	$(UV_INDEX) $(BIN)/python $(PLUGIN_TABLE) --install likely
	touch $@

# The libraries of `make test-ecosystem`, in front of the packages of .venv: torch, Paddle and rlaunch are those. uv would install another
# torch with 3 GB of CUDA.
ECOSYSTEM_ENV := target/ecosystem
$(ECOSYSTEM_ENV)/installed: $(VENV)/torch
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(ECOSYSTEM_ENV)
	echo torch >$(ECOSYSTEM_ENV)/excluded
	$(UV_INSTALL) --python $(ECOSYSTEM_ENV)/bin/python --excludes $(ECOSYSTEM_ENV)/excluded --group ecosystem
	echo "import site; site.addsitedir('$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")')" \
		>"$$($(ECOSYSTEM_ENV)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/beside.pth"
	touch $@

# What looks at pages of reports and of the docs in Chromium, which is of the system.
$(VENV)/browser: $(VENV)/installed
	$(INSTALL) --group browser
	touch $@

# What builds the site of the docs.
$(VENV)/docs: $(VENV)/installed
	$(INSTALL) --group docs
	touch $@

# What checks the workflows of GitHub.
$(VENV)/workflows: $(VENV)/installed
	$(INSTALL) --group workflows
	touch $@

# What builds and audits the wheels.
$(VENV)/wheels: $(VENV)/installed
	$(INSTALL) --group wheels
	touch $@

# The package itself, editable: only a change of Rust builds anything. One of the two is installed at a time.
$(VENV)/built: $(VENV)/installed $(SOURCES)
	rm -f $(VENV)/built-debug
	$(BIN)/maturin develop --release --locked --quiet --features test-hooks
	touch $@

# Unoptimized, for the tests: built in seconds after a change, where an optimized one takes minutes. Each launch takes 4 ms
# longer.
$(VENV)/built-debug: $(VENV)/installed $(SOURCES)
	@command -v clippy-driver >/dev/null || { echo "make: clippy is missing; install it (rustup component add clippy)," \
		"or build without its lints: make LINTED= $@" >&2; exit 1; }
	rm -f $(VENV)/built
	$(LINTED) $(BIN)/maturin develop --locked --quiet --features test-hooks
	touch $@

# Then that the reference has each public name and each option, and looks at the pages. `make test` has the first two among its tests.
docs: site $(VENV)/browser $(VENV)/built-debug
	$(BIN)/python -m pytest --quiet tests/python/test_docs.py tests/python/test_prose.py
	$(LINTED) $(CARGO) test --quiet --locked --test it reference::
	$(BIN)/python -m pytest --quiet tests/site

# Fails on a broken link and on a page outside the navigation. The variable turns off a notice about MkDocs 2.
site: $(VENV)/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# The site as one of several versions, in the local branch gh-pages. VERSION=dev, or VERSION="1.2 latest" for a release; PUSH=1 pushes
# the branch.
MIKE = PATH="$(abspath $(BIN)):$$PATH" RLAUNCH_DOCS_VERSIONS=1 NO_MKDOCS_2_WARNING=1 $(BIN)/mike
site-version: $(VENV)/docs
	$(MIKE) deploy --update-aliases $(if $(PUSH),--push) $(VERSION)
	$(if $(filter latest,$(VERSION)),$(MIKE) set-default $(if $(PUSH),--push) latest)

demo: $(VENV)/built
	$(BIN)/python examples/digits/demo.py

# Rust is built while packages are installed; one cargo works at a time. Then the Python tests have the machine for themselves.
test:
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=line lint-rust $(VENV)/built-debug $(VENV)/torch check-python site \
		$(VENV)/pytest-8 $(VENV)/pytest-9 target/plugins/likely test-rust check-stub check-tests
	@$(MAKE) --no-print-directory test-python

# More random cases (Hypothesis, the differential tests, the property tests and the histories in Rust), then the soak.
test-full: export RLAUNCH_TEST_FULL := 1
test-full: export PROPTEST_CASES := 20000
test-full: export PROTOCOL_CASES := 100000
test-full: $(VENV)/browser test
	$(BIN)/python tests/faults/soak.py --minutes 30

# WHEELS="--target x86_64-unknown-linux-gnu" builds that one alone. Each takes minutes; to run them takes root and mmdebstrap.
WHEELS ?= --run --follow --twice x86_64-unknown-linux-gnu --write docs/wheels.md
wheels: $(VENV)/wheels
	$(BIN)/python tests/wheels/wheels.py $(WHEELS)

# PYTHONS="/opt/a/bin/python3.14 ..." names the interpreters.
test-pythons: $(VENV)/installed
	rm -rf target/pythons/wheel
	$(BIN)/maturin build --release --locked --quiet --out target/pythons/wheel
	$(BIN)/python tests/pythons.py --wheel target/pythons/wheel/*.whl $(PYTHONS)

# GPU="--write docs/gpu.md": the page too. The torch of .venv has no CUDA, so tests of torch are skipped here; they need an interpreter
# with another one: PYTHONPATH=python python3 -m pytest tests/gpu
test-gpu: $(VENV)/built
	$(BIN)/python -m pytest tests/gpu $(GPU)

# Debian's Slurm, Open MPI and sshd for the test cluster. They are unpacked, not installed: this machine gets no users, services or files
# in /etc. Programs have the names that update-alternatives would give them.
SLURM := target/slurm
APT_GET := apt-get --quiet --quiet --option Dir::Cache::archives=$(CURDIR)/$(SLURM).debs
$(SLURM)/unpacked:
	@command -v apt-get >/dev/null || { echo "make: the test cluster needs Debian or Ubuntu, whose apt-get downloads Slurm" >&2; exit 1; }
	rm -rf $(SLURM) $(SLURM).debs
	mkdir -p $(SLURM)/usr/sbin $(SLURM).debs/partial
	download() { $(APT_GET) install --yes --no-install-recommends --download-only munge slurm-client slurmctld slurmd openmpi-bin \
		openssh-server; }; \
		download || { $(APT_GET) update && download; }
	for package in $(SLURM).debs/*.deb; do dpkg --extract $$package $(SLURM) || exit 1; done
	for name in slurmctld slurmd slurmstepd; do ln -s $$name-wlm $(SLURM)/usr/sbin/$$name; done
	ln -s mpirun.openmpi $(SLURM)/usr/bin/mpirun
	touch $@

# CLUSTER="-k scancel": these tests alone. CLUSTER="--write docs/slurm-table.md": the page too. Each worker has a cluster of its own.
test-cluster: $(VENV)/built-debug $(VENV)/torch $(SLURM)/unpacked
	$(BIN)/python -m pytest tests/cluster --numprocesses=6 --dist=worksteal $(CLUSTER)

# ECOSYSTEM="-k lightning": these tests alone. ECOSYSTEM="--write docs/ecosystem.md": the page too.
test-ecosystem: $(VENV)/built-debug $(ECOSYSTEM_ENV)/installed
	$(ECOSYSTEM_ENV)/bin/python -m pytest tests/ecosystem --numprocesses=2 --dist=worksteal $(ECOSYSTEM)

# Tests that need a network server, and those that start many processes, are left to `make test`.
check: lint-rust $(VENV)/torch check-python
	PROPTEST_RNG_SEED=1 PROPTEST_CASES=64 PROTOCOL_CASES=200 $(LINTED) $(CARGO) test --quiet --locked --lib
	PROPTEST_RNG_SEED=1 PROPTEST_CASES=64 PROTOCOL_CASES=200 $(LINTED) $(CARGO) test --quiet --locked --test it -- --test-threads=$(WORKERS) --skip rendezvous:: --skip process::
	@$(MAKE) --no-print-directory check-stub
	RLAUNCH_SEED=1 $(BIN)/python -m pytest --quiet --numprocesses=$(WORKERS) --dist=worksteal $(SMOKE)

lint: lint-rust lint-all check-python check-stub

# actionlint, which runs shellcheck on each command. Apart from `make lint`, because its package downloads the program from GitHub.
lint-workflows: $(VENV)/workflows
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/actionlint

# Each build with LINTED lints what it compiles; CI lints the rest too.
lint-rust: $(if $(filter-out 0,$(RLAUNCH_TEST_ALL) $(RLAUNCH_TEST_FULL)),lint-all)
	$(CARGO) fmt --check
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml --check

# The benches, and the crate without etcd, too.
lint-all:
	$(LINTED) $(CARGO) check --quiet --all-targets --features test-hooks --locked
	$(LINTED) $(CARGO) check --quiet --no-default-features --locked

# The etcd server of the tests is among the installed packages. Random cases are drawn by one seed, so that a failure comes
# from the change; `cargo test` draws new ones each time.
test-rust: $(VENV)/installed
	PROPTEST_RNG_SEED=1 $(LINTED) $(CARGO) test --locked -- --test-threads=$(WORKERS)

# Style, imports and types of the Python package, which import-linter finds where it is installed.
check-python: $(VENV)/built-debug $(VENV)/torch
	$(BIN)/ruff check python tests benches examples docs/theme
	$(BIN)/ruff format --check python tests benches examples docs/theme
	$(BIN)/lint-imports
	$(BIN)/mypy

check-stub: $(VENV)/built-debug
	$(BIN)/python -m mypy.stubtest rlaunch._lib

# That all tests can be imported; and pytest keeps their bytecode. Else each worker would compile them all, for 3 seconds of CPU.
check-tests: $(VENV)/built-debug $(VENV)/torch
	mkdir -p target
	$(BIN)/python -m pytest --collect-only --quiet --quiet >target/collected || { cat target/collected; exit 1; }

# RLAUNCH_SEED=7 draws other random cases; `python -m pytest` draws new ones each time.
test-python: $(VENV)/built-debug $(VENV)/torch $(VENV)/pytest-8 $(VENV)/pytest-9 target/plugins/likely
	RLAUNCH_SEED=$${RLAUNCH_SEED:-1} $(BIN)/python -m pytest --numprocesses=$(WORKERS) --dist=worksteal

# FAULTS_TORCHRUN_PYTHON names torchrun's interpreter. BENCH="crash idle": only these sections;
# BENCH="--write docs/benchmarks.md": the results page too. BEFORE=HEAD~1: beside the rlaunch of that commit.
bench: $(VENV)/built $(VENV)/torch
	$(INSTALL) --group bench
	$(if $(BEFORE),FAULTS_BEFORE_PYTHON="$$($(BIN)/python benches/before.py $(BEFORE))" && export FAULTS_BEFORE_PYTHON &&) $(BIN)/python benches/bench.py $(BENCH)

hangs: $(VENV)/built $(VENV)/torch
	$(BIN)/python tests/python/hangs/hang_table.py --results target/hangs.json --jobs 2 --write docs/hangs.md

agents: $(VENV)/built
	$(BIN)/python benches/agents.py --write docs

# FAULTS_TORCHRUN_PYTHON names torchrun's interpreter. ONLY=--only-installed leaves out rivals that are not there.
faults: $(VENV)/built
	$(BIN)/python tests/faults/matrix.py --launcher rlaunch --launcher paddle --launcher torchrun \
		$(ONLY) --write docs/fault-matrix.md

# STOPS="--launcher run --sender ssh": these cells alone; the page keeps what target/stops.json has of the others.
stops: $(VENV)/built $(VENV)/torch $(SLURM)/unpacked
	$(BIN)/python tests/faults/stops/stop_matrix.py --results target/stops.json --write docs/stop-matrix.md $(STOPS)

chaos: $(VENV)/built $(VENV)/torch
	$(BIN)/python tests/chaos/chaos.py --write docs/chaos.md $(CHAOS)

blame: $(VENV)/built-debug $(VENV)/torch
	$(BIN)/python tests/faults/blame/table.py --write docs/blame.md

# PLUGINS="flaky --again": these plugins alone; the page keeps what target/plugins.json has of the others.
plugins: $(VENV)/built-debug
	mkdir -p target
	$(UV_INDEX) $(BIN)/python $(PLUGIN_TABLE) --results target/plugins.json --write docs/pytest-plugins.md $(PLUGINS)

# FUZZ="http_head blame": these targets alone; FUZZ_SECONDS=60: so long each. New inputs are kept in target/fuzz/corpus.
FUZZ ?= $(notdir $(basename $(wildcard fuzz/targets/*.rs)))
FUZZ_SECONDS ?= 600
fuzz:
	@rustup run nightly rustc --version >/dev/null 2>&1 || { echo "make: fuzzing needs a nightly Rust; install it with:" \
		"rustup toolchain install nightly --profile minimal" >&2; exit 1; }
	test -x target/fuzz/bin/cargo-fuzz || $(CARGO) install --quiet --locked --root target/fuzz cargo-fuzz
	for target in $(FUZZ); do mkdir -p target/fuzz/corpus/$$target target/fuzz/artifacts && \
		CARGO_TARGET_DIR=target/fuzz PATH=$(CURDIR)/target/fuzz/bin:$$PATH nice -n 19 \
		$(CARGO) +nightly fuzz run --sanitizer none $$target target/fuzz/corpus/$$target fuzz/corpus/$$target -- \
		-max_total_time=$(FUZZ_SECONDS) -timeout=60 -rss_limit_mb=2048 -max_len=16384 -print_final_stats=1 \
		-artifact_prefix=target/fuzz/artifacts/$$target- || exit 1; done

# MUTANTS="--shard 0/4": a quarter of them; other options of cargo-mutants too.
mutants: $(VENV)/installed
	test -x target/mutants/bin/cargo-mutants || $(CARGO) install --quiet --locked --root target/mutants cargo-mutants
	PATH=$(CURDIR)/target/mutants/bin:$$PATH $(BIN)/python tests/mutants.py $(MUTANTS)

# SEED=7 draws other runs.
soak: $(VENV)/built
	$(BIN)/python tests/faults/soak.py --minutes 30 $(if $(SEED),--seed $(SEED)) --write docs/soak.md

clean:
	rm -rf $(VENV) target
