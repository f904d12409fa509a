# make run | test | check | mutation | gpu: each first makes the environment, which takes no time when nothing has changed.
# EMMY_VENV names an environment that several checkouts share: it holds the dependencies alone, and PYTHONPATH says which checkout runs.

SHELL := bash
VENV ?= $(or $(EMMY_VENV),.venv)
PY := $(VENV)/bin/python
EXTRAS := check test dev $(if $(shell command -v nvidia-smi),cuda)
STAMP := $(VENV)/.installed-$(shell (cat pyproject.toml constraints.txt; echo $(EXTRAS)) | cksum | cut -d' ' -f1)
export PYTHONPATH := $(CURDIR)$(addprefix :,$(PYTHONPATH))

PYTHON = $(shell for python in python3.12 python3.13 python3.14 python3 "$$HOME"/.pyenv/versions/3.1[2-9]*/bin/python; do \
	"$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 12))' >/dev/null 2>&1 && echo "$$python" && break; done)
REQUIREMENTS := import tomllib; \
	project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	print(*project["dependencies"], *(r for e in "$(EXTRAS)".split() for r in project["optional-dependencies"][e]), sep="\n")

.PHONY: venv run test check mutation gpu
.DEFAULT_GOAL := venv

venv: $(STAMP)
	@:

$(STAMP):
	@python="$(PYTHON)"; [ -n "$$python" ] || { echo "Emmy needs Python 3.12 or newer with its venv module, and found none:" \
		"install one (Debian: apt install python3-venv; pyenv install 3.12), or say make PYTHON=/path/to/python" >&2; exit 1; }; \
	set -ex; "$$python" -m venv $(VENV)
	set -o pipefail; $(PY) -c '$(REQUIREMENTS)' | $(PY) -m pip install --quiet -c constraints.txt -r /dev/stdin
	$(if $(EMMY_VENV),,$(PY) -m pip install --quiet --no-deps --no-build-isolation -e .)
	@rm -f $(VENV)/.installed-*; touch $@

run: venv
	$(PY) -m emmy run -c "nn.RMSNorm(2048)(torch.randn(1,32,2048))"

test: venv
	$(PY) -m pytest -n auto --maxprocesses 8

check: venv
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports

mutation: venv
	$(PY) -m benchmarks.mutation --output docs/mutation.md --record benchmarks/results/mutation.jsonl $(MUTATION)

gpu: venv
	$(PY) -m pytest -m gpu
	$(PY) -m benchmarks.build --output bundles
	$(PY) -m benchmarks.run --bundles bundles --output results.json
