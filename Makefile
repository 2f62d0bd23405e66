# Everything runs in the checkout's own environment, .venv, which the first target that needs it makes.
# A second run reuses it; a change of pyproject.toml installs again.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# The CuPy extra for this machine's NVIDIA driver: cuda12, cuda13, or nothing where there is no driver.
CUPY := $(shell $(PYTHON) -c "import ctypes; v = ctypes.c_int(); \
	ctypes.CDLL('libcuda.so.1').cuDriverGetVersion(ctypes.byref(v)); \
	print('cuda%d' % min(13, v.value // 1000))" 2>/dev/null)
CHECKOUT := --editable '.$(if $(CUPY),[$(CUPY)])'
# Without a driver the tests still compile what CuPy would launch: its wheel alone, without CUDA's libraries.
CUPY_FOR_TESTS := $(if $(CUPY),,cupy-cuda13x)

# The GPU tests spend most of their time compiling, thousands of kernels. Each process has
# a context of its own on the GPU, so there are not more than 14.
PARALLEL = $(shell $(BIN)/python -c "import importlib.util, os; \
	print('-n %d --dist worksteal' % max(1, min(14, os.cpu_count() - 2)) if importlib.util.find_spec('xdist') else '')" 2>/dev/null)

.PHONY: help docs bench test test-gpu test-versions test-nightly faults lint format sanitize measure report clean

help:
	@echo "make bench          the quick table of the benchmark"
	@echo "make test           the tests, in minutes; ARGS=... goes to pytest, PEERS=1 adds comparisons with other libraries,"
	@echo "                    ALL=1 many more combinations and what is read from machine code, as .ci/run does"
	@echo "make test-gpu       those that need a GPU alone, in parallel; make test runs them where there is a driver"
	@echo "make test-versions  the tests with the lowest versions that are allowed, and with the newest"
	@echo "make test-nightly   the tests with NumPy's nightly wheel and CuPy's newest pre-release"
	@echo "make faults         breaks the code on purpose, fault by fault, and runs the test that must notice;"
	@echo "                    RANDOM=60 SEED=1 draws mechanical mutants, and says which of them no test notices, KERNELS=1"
	@echo "                    those of kernels and planners alone; with FOLDER=name it goes on where it was stopped;"
	@echo "                    ARGS='-k words' chooses among the others"
	@echo "make docs           the site, docs/_build/html: the documents, the reference, and examples with their pictures"
	@echo "make lint           what must be clean before a commit"
	@echo "make format         Python, CUDA and Markdown in their one format"
	@echo "make sanitize       compute-sanitizer over every kernel function (needs a GPU and the CUDA toolkit)"
	@echo "make measure        the whole benchmark on a GPU, saved row by row; RESUME=1 goes on, RESULTS=folder, SECONDS=of a"
	@echo "                    problem; where nothing can be installed: python3 -m bench chip --results folder"
	@echo "make report         figures, tables and regret from RESULTS, without a GPU"
	@echo "make clean          remove the environment and what was built"

bench: $(VENV)/.bench
	$(BIN)/python -m bench --quick

ON_GPU := tests/test_gpu.py tests/test_torch_gpu.py

# A process for each core.
ON_CPU := -n auto --dist worksteal $(if $(ALL),--all)
test: $(VENV)/.test $(if $(PEERS),$(VENV)/.peers) $(if $(ALL),$(VENV)/.nvrtc)
ifneq ($(and $(CUPY),$(if $(ARGS),,1)),)
	$(BIN)/python -m pytest $(ON_CPU) $(ON_GPU:%=--ignore=%)
	$(BIN)/python -m pytest $(PARALLEL) $(ON_GPU)
else
	$(BIN)/python -m pytest $(ON_CPU) $(ARGS)
endif

test-gpu: $(VENV)/.test
	$(BIN)/python -m pytest $(PARALLEL) $(ON_GPU) $(ARGS)

# A warning is an error, and every example of the site is run.
docs: $(VENV)/.docs
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs docs/_build/html
	@echo "docs/_build/html/index.html"

# What every extra names: of CUDA's CuPy alone, and torch with all of CUDA that it asks for (some 5 GB).
EVERYTHING := --editable '.[onnx,torch,dask,jax]' --group test --group bench 'cupy-cuda13x>=14.0'

# The lowest versions that pyproject.toml allows and the newest there are, each in an environment of its own.
# ARGS goes to pytest; VERSIONS=lowest-direct runs one of the two.
VERSIONS := lowest-direct highest
test-versions: $(VENV)/.uv
	for versions in $(VERSIONS); do \
		$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(VENV)/$$versions && \
		$(BIN)/uv pip install --quiet --python $(VENV)/$$versions --resolution $$versions $(EVERYTHING) && \
		$(BIN)/uv pip list --quiet --python $(VENV)/$$versions && \
		$(VENV)/$$versions/bin/python -m pytest $(ON_CPU) $(ARGS) || exit 1; \
	done

# Of the two indexes of coming versions, each is asked for its one package alone.
test-nightly: $(VENV)/.uv
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(VENV)/nightly
	$(BIN)/uv pip install --quiet --python $(VENV)/nightly $(EVERYTHING)
	$(BIN)/uv pip install --python $(VENV)/nightly --upgrade --prerelease allow --no-deps \
		--index-url https://pypi.anaconda.org/scientific-python-nightly-wheels/simple numpy
	$(BIN)/uv pip install --python $(VENV)/nightly --upgrade --prerelease allow --no-deps \
		--find-links https://pip.cupy.dev/pre cupy-cuda13x
	$(VENV)/nightly/bin/python -m pytest $(ON_CPU) $(ARGS)

faults: $(VENV)/.test
ifdef RANDOM
	PYTHONPATH=tests $(BIN)/python -m pytest -p reach tests/mutants.py -n 2 -rPs --tb=line --random $(RANDOM) --seed $(or $(SEED),0) \
		$(if $(KERNELS),--kernels) $(if $(FOLDER),--folder $(FOLDER)) $(ARGS)
else
	$(BIN)/python -m pytest tests/faults.py -n 2 -v $(ARGS)
endif

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --strict tests/typed_calls.py
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/zizmor --offline --quiet .github
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows $$(git ls-files '.github/workflows/*')
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.readthedocs .readthedocs.yaml
	$(BIN)/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files '*.cu' '*.cuh' 'bench/*.h' 'bench/*.cpp')
	$(BIN)/rumdl check --quiet --no-cache $$(git ls-files '*.md')
	$(BIN)/codespell $$(git ls-files)
	$(BIN)/check-added-large-files --enforce-all --maxkb 700 $$(git ls-files)
	$(BIN)/check-case-conflict $$(git ls-files)
	$(BIN)/check-merge-conflict --assume-in-merge $$(git ls-files)
	$(BIN)/repo-review --show err .

format: $(VENV)/.lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $$(git ls-files '*.cu' '*.cuh' 'bench/*.h' 'bench/*.cpp')
	$(BIN)/rumdl fmt --quiet --no-cache $$(git ls-files '*.md')

# make sanitize SANITIZERS=racecheck runs one of them.
SANITIZERS := memcheck racecheck initcheck synccheck
sanitize: $(VENV)/.test
	@command -v compute-sanitizer >/dev/null || { echo "make sanitize: compute-sanitizer of the CUDA toolkit is not on the PATH"; exit 1; }
	for tool in $(SANITIZERS); do \
		compute-sanitizer --tool $$tool --error-exitcode 1 \
			$(BIN)/python -m pytest -p no:xdist tests/test_gpu.py -k test_smoke || exit 1; \
	done

# Where nothing can be installed: python3 -m bench chip --results DIR.
RESULTS := bench/results
measure: $(VENV)/.bench $(VENV)/.peers
	$(BIN)/python -m bench --device gpu --full --save $(RESULTS)/gpu.json$(if $(SECONDS), --seconds $(SECONDS))$(if $(RESUME), --resume)

report: $(VENV)/.bench
	$(BIN)/python -m bench report --results $(RESULTS)

clean:
	rm -rf $(VENV) dist docs/_build docs/tutorial docs/gallery docs/api/generated .pytest_cache .mypy_cache .ruff_cache .hypothesis

# The environment; where Python comes without pip (Debian's python3 without python3-venv), pip brings itself in.
$(BIN)/python:
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" || \
		{ echo "make: Python 3.11 or newer is needed, $(PYTHON) is $$($(PYTHON) --version 2>&1); set PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV) || { $(PYTHON) -m venv --without-pip $(VENV) && \
		$(PYTHON) -m pip --python $(BIN)/python install --quiet pip; } || \
		{ rm -rf $(VENV); echo "make: install Python's venv module first (Debian: apt install python3-venv)"; exit 1; }

# Dependency groups are known to pip from 25.1; what Python comes with may be older.
$(VENV)/.pip: | $(BIN)/python
	$(PIP) 'pip>=25.1'
	@touch $@

$(VENV)/.uv: | $(VENV)/.pip
	$(PIP) 'uv>=0.9'
	@touch $@

# One stamp per set of dependencies.
$(VENV)/.bench: pyproject.toml | $(VENV)/.pip
	$(PIP) $(CHECKOUT) --group bench
	@touch $@

$(VENV)/.test: pyproject.toml | $(VENV)/.pip
	$(PIP) $(CHECKOUT) --group test $(CUPY_FOR_TESTS)
	@touch $@

$(VENV)/.peers: pyproject.toml bench/clients.txt | $(VENV)/.pip
	$(PIP) --editable . --group peers
	$(PIP) --no-deps --requirement bench/clients.txt
	@touch $@

$(VENV)/.docs: pyproject.toml | $(VENV)/.pip
	$(PIP) --editable . --group docs
	@touch $@

# Other releases of NVRTC, which users have: in folders of their own, since an environment has one.
$(VENV)/.nvrtc: | $(BIN)/python
	$(PIP) --no-deps --target $(VENV)/nvrtc-12.9 'nvidia-cuda-nvrtc-cu12==12.9.*'
	$(PIP) --no-deps --target $(VENV)/nvrtc-newest nvidia-cuda-nvrtc
	@touch $@

$(VENV)/.lint: pyproject.toml | $(VENV)/.pip
	$(PIP) --editable . --group test --group lint
	@touch $@
