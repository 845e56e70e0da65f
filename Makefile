# make demo   trees of sample digits in demo/index.html, predicted on the spot
# make test   all quick tests
# make lint   style, format and types
# make bioimageio  the tests of that export, in an environment of its own
# make clean  remove .venv and everything that can be made again
#
# Each needs only Python 3.11 or newer: what is missing is installed into .venv on first use, and
# again when a pyproject.toml or constraints.txt changes. PYTHON=… chooses the interpreter.

SUITABLE := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
CANDIDATES := python3 python3.13 python3.12 python3.11 python3.14 python
VENV_PYTHON := .venv/bin/python
INSTALL := $(VENV_PYTHON) -m pip install --quiet --disable-pip-version-check -c constraints.txt
# One thread for each test process: several of them share the cores.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 MPLBACKEND=Agg
WORKERS ?= auto

PLUGIN := plugins/napari
# What Qt and its screen for tests need of Debian, beside what every computer with a screen has.
SCREEN := xvfb libdbus-1-3 libegl1 libfontconfig1 libgl1 libgl1-mesa-dri libglib2.0-0 libxkbcommon-x11-0 \
  $(addprefix libxcb-,cursor0 icccm4 image0 keysyms1 render-util0 shape0 xinerama0 xkb1)

.PHONY: demo test browser screen lint bioimageio clean

demo: .venv/.installed
	@$(VENV_PYTHON) -m posterior_trees demo --out demo
	@echo "Open $(CURDIR)/demo/index.html in a browser."

test: .venv/.installed-dev browser screen
	$(TEST_ENV) $(VENV_PYTHON) -m pytest -q -n $(WORKERS) --maxprocesses 4 --dist worksteal
	$(TEST_ENV) $(VENV_PYTHON) -m pytest -q $(PLUGIN)

# Where they are missing and may be installed: Debian's Chromium for the browser tests …
browser:
	@sh tests/install_packages.sh "The browser tests" \
	  "command -v chromium || command -v chromium-browser || command -v google-chrome" chromium

# … and a screen for napari's.
screen:
	@sh tests/install_packages.sh "The napari tests" \
	  "command -v Xvfb && ldconfig -p | grep -F libxcb-cursor.so.0" $(SCREEN)

lint: .venv/.installed-dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/ty check

# Its library wants an older pydantic than the tests' validators of OME-Zarr.
bioimageio: | .venv/.made
	@$(VENV_PYTHON) -m venv .venv-bioimageio
	@grep -Ev '^pydantic(-core)?=' constraints.txt > .venv-bioimageio/constraints.txt
	@.venv-bioimageio/bin/python -m pip install --quiet --disable-pip-version-check \
	  -c .venv-bioimageio/constraints.txt -c constraints-bioimageio.txt -e '.[bioimageio,dev]'
	$(TEST_ENV) .venv-bioimageio/bin/python -m pytest -q tests/test_bioimageio.py

clean:
	rm -rf .venv .venv-bioimageio demo dist build .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.installed: pyproject.toml constraints.txt | .venv/.made
	@echo "Installing into .venv; the first time takes a few minutes."
	@$(INSTALL) -e '.[explore]'
	@touch $@

.venv/.installed-dev: pyproject.toml constraints.txt $(PLUGIN)/pyproject.toml $(PLUGIN)/constraints.txt | .venv/.made
	@echo "Installing into .venv; the first time takes a few minutes."
	@$(INSTALL) -c $(PLUGIN)/constraints.txt -e '.[dev]' -e '$(PLUGIN)[test]'
	@touch .venv/.installed $@

.venv/.made:
	@for python in $(or $(PYTHON),$(CANDIDATES)); do \
	  if "$$python" -c '$(SUITABLE)' 2>/dev/null; then \
	    "$$python" -m venv --clear .venv && touch $@; exit; \
	  fi; \
	done; \
	echo "Posterior Trees needs Python 3.11 or newer with venv, and found: $$($(firstword $(or $(PYTHON),$(CANDIDATES))) --version 2>&1)." >&2; \
	echo "Install one (on Debian and Ubuntu: python3 python3-venv), or name it:" \
	     "make PYTHON=/path/to/python3.12 …" >&2; \
	exit 1
