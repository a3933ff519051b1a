# `make demo` and `make test` set everything up themselves; they need python3 >= 3.11 and the package registries.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
TRANSPORT ?= auto
JOBS   ?= 2
REV    ?= main
MINUTES ?= 30
EXAMPLES ?= 20000

.PHONY: setup demo demo-registry test test-slow test-s3 test-cluster check format bench bench-compare soak fuzz proto lock clean

setup: $(VENV)/.stamp

$(VENV)/.stamp: requirements-dev.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("python3 >= 3.11 is needed, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check --require-hashes -r requirements-dev.txt
	PYTHONWARNINGS=ignore $(BIN)/pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

demo: setup  ## real Envoy, the picker, five model servers, traffic
	$(BIN)/epp demo

demo-registry: setup  ## the registry reconciler's story: deploy, roll, undeploy, pin, outage
	$(BIN)/python -m registry.demo

test: setup  ## every test
	$(BIN)/pytest -n $(JOBS) --dist loadfile --transport=$(TRANSPORT)

test-s3: setup  ## pins on a real S3 server, large cases too: Ceph's radosgw, or the one S3_ENDPOINT names
	$(if $(S3_ENDPOINT),,$(BIN)/python -m tests.artifacts.radosgw) $(BIN)/pytest -n $(JOBS) --dist loadfile -m 'slow or not slow' tests/artifacts

test-slow: setup  ## half an hour of random faults (CHAOS_S=seconds for less), and other long tests
	$(BIN)/pytest -m slow

test-cluster: setup  ## tests/cluster against a real API server: make test-cluster KUBECONFIG=... (the CRDs must be installed)
	$(if $(KUBECONFIG),,$(error give the cluster: make test-cluster KUBECONFIG=path))
	$(BIN)/pytest tests/cluster --kubeconfig=$(KUBECONFIG)

check: setup  ## what must hold before a commit
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m protos.generate --check
	$(BIN)/python -m epp.docs --check
	$(BIN)/python -m deploy.check
	$(BIN)/mkdocs -q build --strict

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

LOAD_TOOLS = command -v h2load wrk >/dev/null || { apt-get update -q && apt-get install -y -q nghttp2-client wrk; }

bench: setup  ## every benchmark, with its target; BENCH="streams envoy" runs some
	@$(LOAD_TOOLS)
	$(BIN)/python -m benchmarks $(BENCH)

bench-compare: setup  ## this tree against another revision, interleaved: REV=main
	@$(LOAD_TOOLS)
	$(BIN)/python -m benchmarks.compare $(REV)

soak: setup  ## a steady 2 000/s: MINUTES=30
	$(BIN)/python -m benchmarks.soak $(MINUTES)

fuzz: setup  ## ten minutes and more of odd input: EXAMPLES=20000 a law
	EPP_FUZZ_EXAMPLES=$(EXAMPLES) $(BIN)/pytest tests/fuzz -n $(JOBS) --timeout 3600

proto: setup
	$(BIN)/python -m protos.generate

lock:  ## pin every dependency with hashes and without index addresses
	$(BIN)/pip-compile -q --generate-hashes --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --strip-extras --allow-unsafe --extra demo --extra s3 --extra test --extra dev -o requirements-dev.txt pyproject.toml
	$(BIN)/pip-compile -q --generate-hashes --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --strip-extras --allow-unsafe --extra s3 -c requirements-dev.txt -o requirements.txt pyproject.toml
	$(BIN)/pip-compile -q --generate-hashes --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --strip-extras --allow-unsafe --all-build-deps --only-build-deps -c requirements-dev.txt -o requirements-build.txt pyproject.toml

clean:
	rm -rf $(VENV) build dist *.egg-info site
