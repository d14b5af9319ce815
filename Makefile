# Two commands do everything: `make demo` and `make test`. `make check` runs what takes longer.

PYTHON ?= python3
VENV ?= .venv
MINUTES ?= 30
BIN := $(VENV)/bin
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical --maxprocesses 4 --dist loadgroup
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test check test-gpu test-gpu-ranks mutants hazards sweep soak pictures lint clean

demo: $(VENV)/.installed  ## Train on the embedded corpus, translate a few sentences, print scores.
	@rm -rf runs/demo
	$(BIN)/gapless train --run-dir runs/demo
	@echo
	$(BIN)/gapless translate runs/demo \
	  "She bought two red books in the shop yesterday." \
	  "It is half past three in the afternoon." \
	  "This letter was written on April 28, 1929."
	@echo
	$(BIN)/gapless evaluate runs/demo

test: $(VENV)/.installed-test lint  ## Lint, types, import rules and the tests that need no GPU.
	$(PYTEST) -m "not slow and not gpu and not multi_gpu"

check: $(VENV)/.installed-frameworks  ## The slow tests: a wheel, all mutants, real frameworks.
	$(PYTEST) -m slow -o hang_timeout=900

lint: $(VENV)/.installed-test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

mutants: $(VENV)/.installed-test  ## Remove every ordering operation in turn; all must be noticed.
	cd tests && PYTHONPATH=.:../src ../$(BIN)/python -m simulation.mutants

hazards: $(VENV)/.installed-test  ## Every loop of users on the simulated device; make check runs some.
	GAPLESS_ALL_CASES=1 $(PYTEST) tests/hazards -k simulated_device

sweep: $(VENV)/.installed-test  ## Every scenario under every scheduler and 200 seeds.
	cd tests && PYTHONPATH=.:../src ../$(BIN)/python -m simulation.sweep --seeds 200 --jobs 2

soak: $(VENV)/.installed-test  ## Faults at random on one run, for MINUTES=30; nothing grows or is lost.
	cd tests && PYTHONPATH=.:../src OMP_NUM_THREADS=1 \
	  ../$(BIN)/python -m faults.soak --minutes $(MINUTES)

pictures: $(VENV)/.installed-test  ## Take the pictures of pages anew.
	cd tests && PYTHONPATH=.:../src OMP_NUM_THREADS=1 ../$(BIN)/python -m report.pictures

test-gpu:  ## The GPU suite, with the current Python; fails where no GPU is.
	GAPLESS_REQUIRE_GPU=1 PYTHONPATH=src $(PYTHON) -m pytest -m gpu tests/gpu

test-gpu-ranks:  ## Several ranks on two GPUs, with the current Python; fails where there is one.
	GAPLESS_REQUIRE_GPU=1 NCCL_NVLS_ENABLE=0 PYTHONPATH=src $(PYTHON) -m pytest -m multi_gpu \
	  tests/gpu tests/ranks tests/benchmarks/test_ranks_benchmark.py

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e ".[nmt]"
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP) -e ".[nmt,test,lint]"
	@touch $@

$(VENV)/.installed-frameworks: $(VENV)/.installed-test
	$(PIP) -e ".[nmt,test,lint,frameworks]"
	@touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
