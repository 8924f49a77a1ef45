# `make demo` and `make test` need nothing but Python 3.11 or later and make: they set up .venv themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SHARE := 1
SEED := 0
TESTS_SHARE := 1
GALLERY := 1
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test lint format types check slow base dist installs browser bench hardening fuzz docs coverage duplicates clean

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: $(VENV)/.demo ## set up, then the paper's 2-D figure, and all methods on digits-backgrounds: tables, and a page
	@mkdir -p out
	$(BIN)/compshift figure gaussian2d -o out/gaussian2d.png
	$(BIN)/compshift bench digits-backgrounds --features --drop 3,stripes --drop 6,rings --drop 8,gradient \
		--draws 2 --seeds 1 -o out/demo
	$(BIN)/compshift report out/demo -o out/demo.html

test: lint types check ## set up, then lint, types, tests, doctests and the README's examples

lint: $(VENV)/.dev ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev ## mypy --strict
	$(BIN)/mypy

check: $(VENV)/.dev ## pytest, without the tests marked slow
	$(BIN)/pytest -q -n 2 -m 'not slow'

slow: $(VENV)/.dev ## the tests marked slow: several processes, kills, schedulers, full-size networks (TESTS_SHARE=3: a third)
	TESTS_SHARE=$(TESTS_SHARE) $(BIN)/pytest -q -n 2 -m slow tests

base: ## build the wheel, use it outside of this folder, and run the tests on it: no torch, no plots (TESTS_SHARE=3: a third)
	$(MAKE) VENV=.venv-base .venv-base/.base
	rm -rf build out/base
	.venv-base/bin/python -m pip --disable-pip-version-check wheel --quiet --no-deps --wheel-dir out/base .
	.venv-base/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --force-reinstall out/base/*.whl
	.venv-base/bin/python tests/outside.py
	TESTS_SHARE=$(TESTS_SHARE) .venv-base/bin/pytest -q -n 2 -m 'not slow' tests

dist: $(VENV)/.dev ## build wheel and source distribution into out/dist, and check them and the files for GitHub
	rm -rf build out/dist && mkdir -p out
	$(BIN)/python -m build --outdir out/dist . > out/build.log 2>&1 || { cat out/build.log >&2; exit 1; }
	$(BIN)/twine check --strict out/dist/*
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/idea.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff

installs: dist ## install both in a clean environment of every Python from 3.11 on that is found, and use them there
	$(BIN)/python tests/installs.py

browser: ## install Chromium and its driver, which the tests of pages need; without them these are skipped (Debian, Ubuntu)
	{ command -v chromium && command -v chromedriver; } || { apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium chromium-driver; }

bench: $(VENV)/.dev ## measure, and print one table
	$(BIN)/python benchmarks/run.py

hardening: $(VENV)/.dev ## try to break it: bad input, hostile files, faults; one table of counts (SHARE=4: a quarter, SEED=7: others)
	HARDENING_SHARE=$(SHARE) HARDENING_SEED=$(SEED) $(BIN)/pytest -q -n 2 --dist worksteal \
		-o faulthandler_timeout=1800 -m hardening tests/hardening

fuzz: $(VENV)/.dev ## look for inputs that break the parsers, guided by coverage; a minute each (atheris: CPython 3.11 to 3.13)
	$(PIP) atheris
	for format in npz manifest record 'Parquet store' model 'cache 2'; do \
		$(BIN)/python -m tests.hardening.fuzz "$$format" 60 || exit 1; done

docs: $(VENV)/.dev ## build the documentation with its examples into out/docs; a warning is an error (GALLERY=0: do not run them)
	$(BIN)/sphinx-build -W --keep-going -D plot_gallery=$(GALLERY) -b html docs out/docs

coverage: $(VENV)/.dev ## statements of the package that the tests run
	$(BIN)/pytest -q -n 2 --cov=compshift --cov-report=term:skip-covered --cov-fail-under=96

duplicates: $(VENV)/.dev ## places where src repeats itself
	$(BIN)/pylint --disable=all --enable=duplicate-code --min-similarity-lines=6 --ignore-imports=y --ignore-signatures=y \
		--ignore-docstrings=y src/compshift

format: $(VENV)/.dev ## let ruff format and fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove environments and output
	rm -rf .venv .venv-base out build dist

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than 3.11: run make PYTHON=/path/to/python3.11" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e ".[plot,report,torch]"
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e ".[dev]"
	@touch $@

$(VENV)/.base: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e . pytest hypothesis pytest-xdist
	@touch $@
