# Every target sets itself up: a fresh machine needs Python 3.11 and make, nothing else.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Without byte code each of a thousand processes would compile all modules.
unexport PYTHONDONTWRITEBYTECODE
NEWEST := llama.cpp mlx-lm vllm sglang transformers
SITE   := "sphinx>=8.1" "myst-parser>=4" "furo>=2024.8.6" "pillow>=10.1"

.PHONY: run test check pages sentences engines inputs lowest packages programs users nightly hashes fuzz mutants wheels newest $(NEWEST:%=newest-%) bench docs notebooks clean help

help:            ## what there is
	@grep -E '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed 's/:.*##/ -/'

run: $(VENV)/.run            ## a wrong answer from a cache, then every scenario on every profile it names, in exact ring arithmetic
	@$(BIN)/python -m examples.two_codes
	@$(BIN)/cachesim run scenarios --arithmetic ring --brief
	@echo
	@echo "Try next:"
	@echo "  $(BIN)/cachesim run llama.cpp-two-codes     why that answer was wrong"
	@echo "  $(BIN)/cachesim why docs/examples/hybrid.log   what a slow server's log says"
	@echo "  $(BIN)/cachesim learn 1                     the first of the lessons"

test: $(VENV)/.test          ## the tests
	@$(BIN)/python -m pytest -n 2 --dist loadfile

check: $(VENV)/.check        ## lint, types, the page in a browser, scenarios in float, every sentence against its run, the real engines, every command on real input
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(MAKE) --no-print-directory -j4 pages sentences engines inputs lowest
	@$(BIN)/python -m conformance.real_engines
	@$(MAKE) --no-print-directory -j2 packages programs

# Parts of `make check` that do not disturb each other; answers in a browser are waited for.
pages:
	@$(BIN)/python -m conformance.browser
	@$(BIN)/python -m conformance.playground
	@$(BIN)/python -m conformance.site_pages

sentences:
	@nice -n 10 $(BIN)/python -m conformance.in_float
	@nice -n 10 $(BIN)/python -m conformance.claims 60

engines:
	@nice -n 10 $(BIN)/python -m conformance.real_engines --set-up

inputs:
	@nice -n 10 $(BIN)/python -m conformance.end_to_end

packages:
	@$(BIN)/python -m pytest -n 2 -rs tests conformance/tests -m "(wheel or thorough or workbench) and not nightly"

programs:
	@$(BIN)/python -m conformance.real_recorder
	@$(BIN)/python -m conformance.commands
	@$(BIN)/python -m conformance.upstream_mlx_lm

lowest: $(VENV)/.test        ## tests that touch each dependency, with the lowest versions that pyproject.toml allows
	@nice -n 10 $(BIN)/python -m conformance.lowest

users: $(VENV)/.check        ## every command and format on real input, and each command that output and docs print
	@$(BIN)/python -m conformance.end_to_end --all-commands --whole

nightly: $(VENV)/.check      ## each real engine, the same on a thousand new logs, the reused tokens of 1,500 new lives of servers, every sentence of 10,000 workloads
	@$(BIN)/python -m conformance.real_engines --every
	@$(BIN)/python -m pytest -n 2 -rs tests conformance/tests -m "wheel or thorough or workbench"
	@$(BIN)/python -m conformance.end_to_end --seed $$(date +%Y%m%d) --logs 1040 --every 1 --recordings 200 --all-commands --whole
	@$(BIN)/python -m benchmarks against $$(git rev-list -1 --before="1 day ago" HEAD)
	@$(BIN)/python -m benchmarks.growth traces
	@$(BIN)/python -m conformance.end_to_end.lives --seed $$(date +%Y%m%d) --lives 1500
	@$(BIN)/python -m conformance.end_to_end.advice --seed $$(date +%Y%m%d)
	@$(BIN)/python -m conformance.in_float --every
	@$(BIN)/python -m conformance.claims
	@$(BIN)/python -m conformance.browser --every
	@$(BIN)/python -m conformance.playground --every
	@$(BIN)/python -m conformance.site_pages --every
	@for each in lmcache mlx sglang vllm; do $(BIN)/python -m examples.$$each || exit 1; done

hashes: $(VENV)/.test        ## digests of every run, 12,000 drawn workloads, lessons and pages: which ones a change alters
	@$(BIN)/python -m conformance.hashes

fuzz: $(VENV)/.test          ## a million damaged inputs of every kind: none may crash, hang or fill the memory
	@$(BIN)/python -m conformance.fuzz

mutants: $(VENV)/.test       ## 100 random mutants of each port: which means finds each, and which escape
	@nice -n 10 $(BIN)/python -m conformance.mutants.random

wheels: $(VENV)/.test        ## every scenario on the real servers of its releases, into docs/wheels.csv: a night's work
	@$(BIN)/python -m conformance.wheel_scenarios

newest:          ## the newest llama.cpp, mlx-lm, vLLM, SGLang and Transformers: as the newest releases known here, or what is new
	@$(MAKE) --no-print-directory --keep-going $(NEWEST:%=newest-%)

newest-llama.cpp: ASKED = --workloads 300
newest-mlx-lm: ASKED = --workloads 20 --sequences 100
newest-vllm: ASKED = --workloads 100
newest-sglang: ASKED = --workloads 120
$(NEWEST:%=newest-%): newest-%: $(VENV)/.run
	@$(BIN)/cachesim real $* --newest $(ASKED)

bench: $(VENV)/.test         ## speed, side by side with the real engines
	@$(BIN)/python -m benchmarks

docs: $(VENV)/.docs          ## the documentation, as a site in docs/_build
	@$(BIN)/python docs/generate.py
	@$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build
	@$(BIN)/python docs/make_playground.py docs/_build
	@$(BIN)/python docs/make_lessons.py docs/_build
	@$(BIN)/python docs/make_gallery.py docs/_build
	@echo "docs/_build/index.html" >&2

notebooks: $(VENV)/.run      ## the lessons as notebooks, in docs/_build/notebooks
	@$(BIN)/python docs/make_notebooks.py docs/_build/notebooks

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "cachesim needs Python 3.11 or newer; set PYTHON=...")'
	@$(PYTHON) -m venv $(VENV)

# In a checkout the workbench stands beside the program: `cachesim real` has both.
$(VENV)/.run: pyproject.toml conformance/pyproject.toml | $(VENV)/bin/python
	@echo "setting up $(VENV) ..." >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . --editable conformance
	@touch $@

$(VENV)/.test: $(VENV)/.run
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "pytest>=8.2" "pytest-xdist>=3.6.1" --editable ".[record]"
	@touch $@

$(VENV)/.check: $(VENV)/.test
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "ruff>=0.14" "mypy>=1.18"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "playwright>=1.40" "axe-playwright-python>=0.1.4" || true
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(SITE) || true
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "openai>=1.60" || true
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dask,parquet]" || true
	@touch $@

$(VENV)/.docs: $(VENV)/.run
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(SITE)
	@touch $@

clean:           ## remove what was set up
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .end_to_end docs/_build docs/_generated
