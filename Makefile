# Every target makes .venv on first use and installs the project into it with pinned versions.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WORKERS ?= 2
PYTEST = $(BIN)/python -m pytest -n $(WORKERS)
NATIVE := CMakeLists.txt $(wildcard mithridate/native/*.cpp mithridate/native/*.hpp)
# What depends on which kernels run; tested again on the PyTorch path.
KERNEL_TESTS := tests/test_transformer.py tests/test_contracts.py tests/test_rollout.py \
	tests/test_pretrain.py tests/test_weights.py

.PHONY: install demo test lint docs bench clean

install: $(READY)

$(READY): pyproject.toml constraints.txt $(NATIVE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip install --quiet -e '.[test]'
	touch $(READY)

demo: $(READY)
	$(BIN)/mithridate demo

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

test: lint
	$(PYTEST) --dist loadfile  # the tests of a file share what its fixtures make
	MITHRIDATE_KERNELS=reference $(PYTEST) --dist worksteal $(KERNEL_TESTS)

docs: $(READY)
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs
	@echo "build/docs/index.html"

bench: $(READY)
	$(BIN)/mithridate bench

clean:
	rm -rf $(VENV) build dist demo_output *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
