# Everything starts from nothing and may be run twice: `make test`, `make demo`.
# PYTHON=python3.12 takes another Python, ARGS="-k shards" goes to pytest, the demo or the bench, JOBS=4 runs
# four tests at a time (three for two cores: some of them wait).

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

JOBS ?= 3
STRESS_S ?= 1800
FRESH_S ?= 600
TORTURE_S ?= 1800
SEEDS ?= 20000
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)

# An environment is as good as the files it was made from, and it cannot be moved: both are in its stamp's name.
# So a set-up that is done asks for no network, whatever git does to the times of files.
MADE_FROM := $(shell { pwd; cat pyproject.toml constraints.txt stager/*/c/* stager/*/*/c/*; } | cksum | tr ' ' '-')
STAMP := .venv/.made-$(MADE_FROM)
SIMD_STAMP := .venv-simd/.made-$(MADE_FROM)
TF_STAMP := .venv-tf/.made-$(MADE_FROM)
FRAMEWORKS_STAMP := .venv-frameworks/.made-$(MADE_FROM)-$(shell cksum < tests/frameworks/requirements.txt | tr ' ' '-')
PIP_INSTALL := -m pip install -qq --disable-pip-version-check -c constraints.txt

.PHONY: help setup test check simd tensorflow frameworks no-compiler everything dist extras release fuzz soak simulate stress fresh hung torture mutants demo bench bench-quick bench-workloads bench-scale install-systemd clean distclean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' Makefile | while IFS='|' read -r name text; do \
		printf '  make %-16s %s\n' "$$name" "$$text"; done

setup: $(STAMP) ## make .venv, with torch and all that the tests need
	@echo 'setup: .venv is ready'

test: $(STAMP) ## run the tests
	.venv/bin/python -m pytest -q -n $(JOBS) --dist loadscope $(ARGS)

check: $(STAMP) ## ruff and mypy --strict
	.venv/bin/python -m ruff check .
	.venv/bin/python -m ruff format --check .
	.venv/bin/python -m mypy

simd: $(SIMD_STAMP) ## run the tests with pillow-simd instead of Pillow, in .venv-simd
	.venv-simd/bin/python -m pytest -q -n $(JOBS) --dist loadscope $(ARGS)

tensorflow: $(TF_STAMP) ## run the tests of the TensorFlow client, in .venv-tf
	.venv-tf/bin/python -m pytest -q tests/test_tensorflow.py tests/test_tensorflow_boxes.py $(ARGS)

frameworks: $(FRAMEWORKS_STAMP) ## train with Lightning, Keras, JAX and others, in .venv-frameworks: a table
	PYTHONPATH=tests .venv-frameworks/bin/python -m frameworks $(ARGS)

# Its C would be compiled into the checkout, which all environments share: so it has a copy, and that is the sdist.
no-compiler: dist ## unpack the sdist in .no-compiler, and run its tests where nothing can be compiled
	mkdir -p .no-compiler
	find .no-compiler -mindepth 1 -maxdepth 1 ! -name .venv -exec rm -rf {} +
	tar -xzf dist/*.tar.gz --strip-components 1 -C .no-compiler
	CC=/bin/false CI= $(MAKE) -C .no-compiler test

everything: check test simd tensorflow frameworks no-compiler dist extras ## all tests in all environments, in an hour or two

dist: $(STAMP) ## sdist and wheel, in dist/
	rm -rf dist
	.venv/bin/python -m build --no-isolation

extras: $(STAMP) ## each extra can be installed from nothing
	.venv/bin/python tests/extras.py

release: $(STAMP) ## VERSION=0.1.0: is this commit what its version says, in every place? Then everything is run, and it gets its tag
	.venv/bin/python tests/release.py $(VERSION)
	$(MAKE) everything
	git tag -a v$(VERSION) -m 'stager $(VERSION)'

FUZZ_S ?= 600
FUZZED = jpeg png arrow lmdb listing where tar parquet table volume sound array kept
FUZZ = .venv/bin/python tests/fuzzing.py --seconds $$(($(FUZZ_S) / 15))
fuzz: $(STAMP) ## mutated bytes for all that reads bytes, FUZZ_S=600 seconds; what fails stays in .fuzz/
	set -e; for target in jpeg png; do $(FUZZ) $$target --sanitize $(ARGS); done
	set -e; for target in $(FUZZED); do $(FUZZ) $$target $(ARGS); done

soak: $(STAMP) ## 90 epochs of each way to read: memory, descriptors and threads stay flat
	STAGER_SOAK_EPOCHS=90 .venv/bin/python -m pytest -q tests/test_soak.py $(ARGS)

stress: $(STAMP) $(TF_STAMP) ## STRESS_S=1800 seconds of readers, rescans, evictions, kills and repairs; STRESS_SEED=7 repeats one
	.venv/bin/python tests/stress.py --seconds $(STRESS_S) --tensorflow .venv-tf/bin/python $(if $(STRESS_SEED),--seed $(STRESS_SEED)) $(ARGS)

fresh: $(STAMP) ## FRESH_S=600 seconds of 10,000 files that change under two trainings; FRESH_SEED=7 repeats one, ARGS=--watch
	.venv/bin/python tests/fresh.py --seconds $(FRESH_S) $(if $(FRESH_SEED),--seed $(FRESH_SEED)) $(ARGS)

hung: $(STAMP) ## as root: a mount that hangs, beside others, with and without in turns
	.venv/bin/python tests/hung.py $(ARGS)

torture: $(STAMP) ## TORTURE_S=1800 seconds of bit flips, power losses and S3 faults; TORTURE_SEED=7 repeats one
	$(call debian,e2fsprogs xfsprogs)
	.venv/bin/python tests/torture.py --seconds $(TORTURE_S) $(if $(TORTURE_SEED),--seed $(TORTURE_SEED)) $(ARGS)

simulate: $(STAMP) ## the loop under seeded disorder, without threads or time: SEEDS=20000 worlds of 300 steps
	.venv/bin/python tests/simulate.py --seeds $(SEEDS) $(ARGS)

mutants: $(STAMP) ## seeded bugs, each caught by its gate, in 6 minutes: a table; ARGS="-k lease" tries some
	.venv/bin/python tests/mutating.py $(ARGS)

demo: $(STAMP) ## S3, the service, a prefetch and a training run, on this machine, in three minutes
	.venv/bin/python examples/demo.py $(ARGS)

bench: $(STAMP) ## stager, its peers and the machine's limits: bench/RESULTS.md, in 20 minutes
	.venv/bin/python -m bench $(ARGS)

bench-quick: $(STAMP) ## the same in two minutes, with the peers that are installed already
	.venv/bin/python -m bench --quick --out .bench $(ARGS)

bench-workloads: $(STAMP) ## boxes, audio, generated data, tars, volumes: people's own way and stager: bench/WORKLOADS.md
	$(call debian,fio)
	.venv/bin/python -m bench.workloads $(ARGS)

bench-scale: $(STAMP) ## what a sample costs when there are 1.3 million: bench/SCALE.md, in 8 minutes
	.venv/bin/python -m bench.scale $(ARGS)

install-systemd: ## unit, user, directories and /etc/stager/stager.toml (as root; DESTDIR=/other/root)
	install -D -m 644 systemd/stager.service "$(DESTDIR)/etc/systemd/system/stager.service"
	install -D -m 644 systemd/stager.sysusers.conf "$(DESTDIR)/etc/sysusers.d/stager.conf"
	install -D -m 644 systemd/stager.tmpfiles.conf "$(DESTDIR)/etc/tmpfiles.d/stager.conf"
	test -e "$(DESTDIR)/etc/stager/stager.toml" || \
		install -D -m 644 systemd/stager.toml "$(DESTDIR)/etc/stager/stager.toml"
	systemd-sysusers --root="$(DESTDIR)/" stager.conf
	systemd-tmpfiles --root="$(DESTDIR)/" --create stager.conf
	test -n "$(DESTDIR)" || systemctl daemon-reload

clean: ## remove what was built and measured; the environments stay
	rm -rf build dist *.egg-info/ .demo .fuzz .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find bench clients examples service stager tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## remove the environments too
	rm -rf .venv .venv-simd .venv-tf .venv-frameworks .no-compiler .bench

$(STAMP):
	$(call debian,strace systemd gcc libc6-dev libjpeg-dev)
	$(call environment,.venv)
	@rm -f .venv/.made-* && touch $@

# pillow-simd takes the folder of Pillow and is older: it lacks the security fixes since Pillow 12.2. It is for data
# one trusts, so it has an environment of its own and is no dependency.
$(SIMD_STAMP):
	$(call debian,strace systemd build-essential libjpeg-dev zlib1g-dev libtiff-dev libwebp-dev liblcms2-dev)
	$(call environment,.venv-simd)
	.venv-simd/bin/python -m pip uninstall -qq --yes pillow pillow-simd
	CC="$$(grep -qw avx2 /proc/cpuinfo && echo 'cc -mavx2' || echo cc)" \
		.venv-simd/bin/python $(PIP_INSTALL) --no-deps --no-cache-dir --no-binary pillow-simd 'pillow-simd>=12.1'
	@rm -f .venv-simd/.made-* && touch $@

# TensorFlow is 1.4 GB, and no other test needs it. Its tests need no torch.
$(TF_STAMP):
	$(call python_environment,.venv-tf)
	.venv-tf/bin/python $(PIP_INSTALL) -e '.[dev,tensorflow]'
	@rm -f .venv-tf/.made-* && touch $@

$(FRAMEWORKS_STAMP):
	$(call environment,.venv-frameworks)
	.venv-frameworks/bin/python $(PIP_INSTALL) -r tests/frameworks/requirements.txt
	@rm -f .venv-frameworks/.made-* && touch $@

# torch comes first, by itself: where it fails, the message is about torch.
define environment
$(call python_environment,$(1))
$(1)/bin/python $(PIP_INSTALL) torch
$(1)/bin/python $(PIP_INSTALL) -e '.[dev]'
endef

define python_environment
@test -n "$(PYTHON)" || { \
	echo "make: no Python 3.11 or newer found; try: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11" >&2; exit 1; }
@echo "setup: $(1), $$("$(PYTHON)" --version); some minutes the first time"
@"$(PYTHON)" -m venv $(1) || { \
	echo "make: $(PYTHON) cannot make an environment; on Debian try: apt-get install python3-venv" >&2; exit 1; }
endef

# Debian packages are installed where we may. Where we may not, we go on: a test that misses one says which.
define debian
@command -v apt-get dpkg-query >/dev/null || exit 0; missing=; \
for package in $(1); do \
	dpkg-query -W -f '$${Status}' $$package 2>/dev/null | grep -q 'ok installed' || missing="$$missing $$package"; \
done; \
[ -n "$$missing" ] || exit 0; \
[ "$$(id -u)" = 0 ] || { echo "setup: not root, going on without$$missing"; exit 0; }; \
echo "setup: installing$$missing"; export DEBIAN_FRONTEND=noninteractive; \
install="apt-get install -qq --yes --no-install-recommends -o DPkg::Lock::Timeout=60$$missing"; \
$$install >/dev/null 2>&1 || { apt-get update -qq >/dev/null 2>&1; $$install >/dev/null; } || \
	echo "setup: could not install$$missing, going on without"
endef
