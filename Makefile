# Two commands for a newcomer: `make demo` and `make test`.  Both install what they need into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -q -c constraints.txt

.PHONY: demo test data browser tutorials engines docs publish benchopt ray lint format quick figures stale bench ci clean \
	help newcomer wheel lowest pythons release

help:  ## what can be made
	@grep -E '^[a-z ]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

$(VENV)/.user: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedshed needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[data,ui]'
	touch $@

$(VENV)/.dev: $(VENV)/.user
	$(PIP) -e '.[dev]'
	touch $@

$(VENV)/.engines: $(VENV)/.dev
	$(PIP) -e '.[dev,flower,nvflare]'
	touch $@

$(VENV)/.docs: $(VENV)/.user
	$(PIP) -e '.[docs]'
	touch $@

$(VENV)/.benchopt: $(VENV)/.dev
	$(PIP) -e '.[dev,benchopt]'
	touch $@

$(VENV)/.ray: $(VENV)/.dev
	$(PIP) -e '.[dev,ray]'
	touch $@

demo: $(VENV)/.user  ## fit one model to the tables of three hospitals, then compare algorithms: reports in results/demo
	$(BIN)/fedshed example hospitals results/demo/hospitals > /dev/null
	$(BIN)/fedshed fit results/demo/hospitals/*.csv --target malignant --columns radius,texture --exp --out results/demo/fit
	$(BIN)/fedshed compare --dataset digits --agents 20 --partition two-class --l2 1e-5 --out results/demo/compare
	@echo
	@echo "Made: results/demo/fit/report.html and results/demo/compare/report.html"
	@echo "Next: . $(BIN)/activate; cd results/demo/hospitals"
	@echo "Then: fedshed fit *.csv --target malignant --exp      (or with your own tables)"

$(VENV)/.browser: $(VENV)/.dev
	$(PIP) -e '.[dev,ui,browser]'
	touch $@

test: $(VENV)/.dev  ## all tests but those of browsers and engines; warnings are errors
	$(BIN)/python -m pytest -n 2 $(PYTEST)

data: $(VENV)/.dev  ## the tests that need the larger data of docs/data.md, in FEDSHED_DATA; none may skip
	test -z "$$FEDSHED_DATA" || FEDSHED_NO_SKIP=1 $(BIN)/python -m pytest -n 2 -m data
	test -n "$$FEDSHED_DATA" || echo "FEDSHED_DATA is not set: not tried"

browser: $(VENV)/.browser  ## the report, the live page and the site of `make docs` in Debian's chromium (skipped where absent)
	$(BIN)/python -m pytest -n 2 -m browser -rs tests/browser

tutorials: $(VENV)/.dev  ## the pages of docs/tutorials print what they show; UPDATE=1 writes it into them
	$(BIN)/python tests/pages.py $(if $(UPDATE),--update) README.md $(filter-out %/deploy.md,$(wildcard docs/tutorials/*.md))

engines: $(VENV)/.engines  ## deployments on Flower and NVFlare, over TLS on this machine
	$(BIN)/python -m pytest -m deployment -p no:xdist
	$(BIN)/python tests/pages.py $(if $(UPDATE),--update) docs/tutorials/deploy.md

docs: $(VENV)/.docs  ## the documentation site, in site/; a link that leads nowhere is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/python tests/site_checks.py site README.md CONTRIBUTING.md CHANGELOG.md benchmarks/benchopt/README.md

publish: $(VENV)/.docs  ## VERSION=0.2: commit the site of that version to the branch gh-pages; nothing is pushed
	test -n "$(VERSION)" || { echo "which version? make publish VERSION=0.2"; exit 2; }
	PATH="$(CURDIR)/$(BIN):$$PATH" NO_MKDOCS_2_WARNING=1 mike deploy -F mkdocs.release.yml --update-aliases $(VERSION) latest
	PATH="$(CURDIR)/$(BIN):$$PATH" mike set-default -F mkdocs.release.yml latest

benchopt: $(VENV)/.benchopt  ## the benchmark for the community, under benchopt
	$(BIN)/python -m pytest -m benchopt -rs tests/test_benchopt.py

ray: $(VENV)/.ray  ## a simulation on a Ray cluster of two workers on this machine
	$(BIN)/python -m pytest -m ray -p no:xdist tests/ray

lint: $(VENV)/.dev  ## formatting, lint, strict types, and that folders are layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/hadolint Dockerfile
	$(BIN)/zizmor --offline --quiet .github/workflows

format: $(VENV)/.dev  ## format in place
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

quick: $(VENV)/.user  ## every figure of the paper in its quick form, on embedded data
	$(BIN)/fedshed reproduce all --quick --out results/quick --results results/quick/results.md

figures: $(VENV)/.browser  ## all recorded results: every figure and its page in docs (needs FEDSHED_DATA; about an hour)
	$(BIN)/python -m benchmarks figures

stale: $(VENV)/.dev  ## which recorded results would be other ones today, and why
	$(BIN)/python -m benchmarks figures --check

bench: $(VENV)/.dev  ## measured figures of docs/, as ratios (needs FEDSHED_DATA)
	$(BIN)/python -m benchmarks

release:  ## what a release needs is so: a clean tree, no stale result, one version; dist/ and site/ are built
	$(PYTHON) tests/gates.py $@

newcomer wheel lowest pythons:  ## gates, each in an environment of its own (tests/gates.py)
	$(PYTHON) tests/gates.py $@

ci:  ## what .ci/run runs, with the time of each step
	$(PYTHON) tests/gates.py ci

clean:  ## remove what was made
	rm -rf $(VENV) results site .pytest_cache .mypy_cache .ruff_cache
