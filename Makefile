# make demo   trains on real data, two ranks; make test   everything that has to hold; make bench   figures.
# Each sets up what it needs in .venv and target/; what is there and valid is used again.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := $(shell find src -name '*.rs') Cargo.toml Cargo.lock pyproject.toml
# Rustdoc would look for make's jobserver, which is for makes alone.
CARGO := env -u MAKEFLAGS cargo
.DEFAULT_GOAL := help
# Thousands of the tests' processes import the same files: compiled ones are kept, even where the environment says otherwise.
unexport PYTHONDONTWRITEBYTECODE
# Most tests in Python wait most of the time: more of them than there are cores.
WORKERS ?= 4
.PHONY: help demo test lint lint-rust lint-python test-rust test-python bench agents faults soak clean

help:
	@echo "make demo    two ranks train a small network on real images, on rlaunch and on Paddle's own launcher"
	@echo "make test    lint, Rust tests, Python tests"
	@echo "make bench   speed and memory, side by side with its rivals; fails when a promise is broken"
	@echo "make agents  10 to 1,000 nodes agree, at etcd and at the embedded master, and writes docs/agents.md"
	@echo "make faults  kills, floods and starves rlaunch and its rivals, and writes docs/fault-matrix.md (an hour or more)"
	@echo "make soak    half an hour of random signals at random members of random jobs, and writes docs/soak.md"
	@echo "make clean   removes .venv and target"

# What the tests and the demo run beside the package. A new list is installed anew.
$(VENV)/installed: pyproject.toml
	@command -v cargo >/dev/null || { echo "make: cargo is missing; install Rust 1.88 or later" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --no-warn-conflicts --group dev
	touch $@

# PyTorch, for tests alone. Pip believes that it lacks CUDA, and says so where it is not told to be silent.
$(VENV)/torch: $(VENV)/installed tests/torch_cpu.py
	$(BIN)/python -m pip install --quiet --no-deps --group torch
	$(BIN)/python tests/torch_cpu.py
	touch $@

# The package itself, editable: only a change of Rust builds anything.
$(VENV)/built: $(VENV)/installed $(SOURCES)
	$(BIN)/maturin develop --release --locked --quiet
	touch $@

demo: $(VENV)/built
	$(BIN)/python examples/digits/demo.py

# Rust is checked while pip works; the tests in Python have the machine for themselves. In this order cargo never waits
# for cargo.
test:
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=line lint-rust $(VENV)/torch $(VENV)/built test-rust
	@$(MAKE) --no-print-directory lint-python test-python

lint: lint-rust lint-python

lint-rust:
	$(CARGO) fmt --check
	$(CARGO) clippy --quiet --all-targets --features python --locked -- -D warnings
	$(CARGO) clippy --quiet --no-default-features --locked -- -D warnings

# The etcd that nodes meet at is among what is installed. What is drawn is drawn alike here, so that a failure is the change's
# and not luck's; `PROPTEST_CASES=20000 cargo test` draws anew, and more.
test-rust: $(VENV)/installed
	PROPTEST_RNG_SEED=1 $(CARGO) test --locked

lint-python: $(VENV)/built
	$(BIN)/ruff check python tests benches examples
	$(BIN)/ruff format --check python tests benches examples
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest rlaunch._lib

# As in test-rust: RLAUNCH_SEED=7 draws other cases than these, `python -m pytest` new ones each time.
test-python: $(VENV)/built $(VENV)/torch
	RLAUNCH_SEED=$${RLAUNCH_SEED:-1} $(BIN)/python -m pytest --numprocesses=$(WORKERS) --dist=worksteal

# torchrun's interpreter is named by FAULTS_TORCHRUN_PYTHON. BENCH="crash idle": only these sections;
# BENCH="--write docs/benchmarks.md": the results page too.
bench: $(VENV)/built $(VENV)/torch
	$(BIN)/python -m pip install --quiet --group bench
	$(BIN)/python benches/bench.py $(BENCH)

agents: $(VENV)/built
	$(BIN)/python benches/agents.py --write docs

# torchrun's interpreter is named by FAULTS_TORCHRUN_PYTHON. ONLY=--only-installed leaves out rivals that are not there.
faults: $(VENV)/built
	$(BIN)/python tests/faults/matrix.py --launcher rlaunch --launcher paddle --launcher torchrun \
		$(ONLY) --write docs/fault-matrix.md

# SEED=7 draws other runs.
soak: $(VENV)/built
	$(BIN)/python tests/faults/soak.py --minutes 30 $(if $(SEED),--seed $(SEED)) --write docs/soak.md

clean:
	rm -rf $(VENV) target
