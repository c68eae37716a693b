# `make quickstart` and `make test` are all a fresh Debian or Ubuntu machine needs. Every target can be repeated.
VENV := .venv
BENCH := $(VENV)/bin/bench
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check
PIP_AUDIT := pip-audit
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
# Of the host: VMs, containers, bare metal under limits, image building.
PACKAGES := qemu-system-x86 podman runc mmdebstrap bubblewrap cgroup-tools e2fsprogs openssh-client cpio \
            util-linux iproute2 python3-venv
# Tests start docker and cron daemons and a Kubernetes of their own, run the probes' programs here too, and look at the
# report in a browser (elsewhere than on Debian it, gVisor and Charliecloud are no packages of apt's; then their tests are
# skipped).
TEST_PACKAGES := $(PACKAGES) fio iperf3 nftables cron openssh-server munge slurmctld slurmd slurm-client strace \
                 containernetworking-plugins iptables openssl dpkg-dev gcc libc6-dev tcsh \
                 libvirt-daemon libvirt-daemon-driver-qemu libvirt-clients \
                 python3-libvirt genisoimage isolinux syslinux-common \
                 $(if $(shell command -v containerd),,containerd) $(if $(shell command -v dockerd),,docker.io) \
                 $(shell . /etc/os-release; if [ "$$ID" = debian ]; then echo charliecloud chromium runsc; fi)
# A Nova from nothing, with what it stands on.
OPENSTACK_PACKAGES := mariadb-server rabbitmq-server keystone glance-api placement-api neutron-server \
                      neutron-linuxbridge-agent nova-api nova-conductor nova-scheduler nova-compute uwsgi-plugin-python3
TESTS ?= tests
PYTEST := $(VENV)/bin/python -m pytest
# Where the output of the tests that run behind those on real targets is kept until these have ended.
BEHIND := $(VENV)/tests.log
APART := -o cache_dir=.pytest_cache/behind
# Behind all others: by its own priority, and by that of its session, between which Linux shares the CPUs first (sched(7)).
# What a shell starts behind itself ignores SIGINT, and tests press Ctrl-C.
LAST := setsid sh -c 'echo 19 2>/dev/null > /proc/self/autogroup; exec env --default-signal=INT nice -n 19 "$$@"' -
# How pytest ends when a part (TESTS=...) holds none of a kind.
NO_TESTS := 5

# Runs a command and keeps its output in a log; prints it if the command fails.
QUIETLY := quietly() { "$$@" > $(VENV)/setup.log 2>&1 || { cat $(VENV)/setup.log >&2; return 1; }; }; mkdir -p $(VENV); quietly

.PHONY: quickstart setup setup-test lock audit test test-all test-openstack test-machine lint format schema help

help:
	@echo "make quickstart   install what is missing, build the image, measure all targets (smoke), show table and plots"
	@echo "make setup        only install what is missing (LOCK=FILE: Python packages of these digests and no others)"
	@echo "make lock         write requirements.locked, the digests of the Python packages that this machine's indexes give"
	@echo "make audit        look the pinned versions up among known vulnerabilities (needs pip-audit and its index)"
	@echo "make test         install what the tests need and run them (TESTS=tests/suite for a part)"
	@echo "make test-all     these and the long ones: kills, emulated guests, Slurm, SSH pools, Kubernetes, every workload"
	@echo "make test-openstack  virtual machines from a Nova that it starts (380 packages of Debian's more)"
	@echo "make test-machine what users have: Debian 12 and 13 with systemd, in emulated machines (root, 35 GB, hours)"
	@echo "make lint         ruff, ruff format, mypy"

# The lightest network: with an emulated CPU others take minutes. The comparison begins with the answer. If a trial failed
# (1), which bench run reports, the others are compared all the same.
quickstart: announced setup
	@echo "== building the image"
	@$(BENCH) image build
	@echo "== measuring on every target that this machine can carry"
	@status=0; $(BENCH) run --scenario synthetic --model vae --target all --profile smoke > /dev/null || status=$$?; \
	test $$status -le 1 || exit $$status; \
	$(BENCH) compare && \
	echo "== the same as one page (more: source $(VENV)/bin/activate, then bench --help)" && \
	$(BENCH) report && \
	echo "== all targets work. This decides whether a container is slower here, in minutes:" && \
	echo "$(BENCH) run" && \
	exit $$status

.PHONY: announced
announced:
	@echo "== the first time this takes about 20 minutes on 2 CPUs and 15 GB of disk (more with the CUDA build of torch), then 5 minutes"

setup: NEEDED = $(PACKAGES)
setup: packages $(VENV)/.installed

setup-test: NEEDED = $(TEST_PACKAGES)
setup-test: packages $(VENV)/.installed

.PHONY: packages
packages:
	@missing=""; for package in $(NEEDED); do \
	    dpkg-query -W -f '$${db:Status-Status}' $$package 2>/dev/null | grep -qx installed || missing="$$missing $$package"; \
	done; \
	if [ -z "$$missing" ]; then echo "== system packages: all there"; exit 0; fi; \
	echo "== installing system packages with apt-get $(if $(SUDO),through sudo):$$missing"; \
	$(QUIETLY) $(SUDO) apt-get update && \
	quietly $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $$missing

$(VENV)/.installed: pyproject.toml constraints.txt $(LOCK)
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "bench needs Python 3.11 or newer as python3; found $$(python3 --version)"; exit 2; }
	@echo "== installing the Python environment into $(VENV) (torch is large)"
	@test -x $(VENV)/bin/python || python3 -m venv $(VENV)
ifdef LOCK
	@$(QUIETLY) $(PIP) install --require-hashes --force-reinstall --no-deps -r $(LOCK) && \
	quietly $(PIP) install --no-index --no-deps --no-build-isolation -e .
else
	@$(QUIETLY) $(PIP) install -c constraints.txt -e '.[dev]'
endif
	@touch $@

# Not in the repository: which file a version of torch is depends on the index and the device, so that a common lock
# would refuse good machines. Made on one machine, it holds for all that have the same indexes, Python and architecture.
lock: $(VENV)/.installed
	@echo "== fetching every package once more, to note its digest"
	@$(QUIETLY) $(PIP) download --only-binary=:all: --dest $(VENV)/wheels -c constraints.txt '.[dev]'
	@$(VENV)/bin/python -c 'from pathlib import Path; from provisioning.images.build import locked; \
	    print(locked(Path("$(VENV)/wheels")), end="")' > requirements.locked
	@rm -r $(VENV)/wheels
	@echo "== $$(wc -l < requirements.locked) packages in requirements.locked: make setup LOCK=requirements.locked"

# The exit code of pip-audit is 1 for vulnerabilities and for an index out of reach: only in the first case it has answered.
# Without --strict, what an index does not know passes for free of them (mirrors of packages know none).
audit:
	@command -v $(firstword $(PIP_AUDIT)) > /dev/null || { echo "make audit needs pip-audit: pipx install pip-audit"; exit 2; }
	@mkdir -p $(VENV); status=0; for listed in constraints.txt docker/requirements.txt; do \
	    echo "== $$listed"; $(PIP_AUDIT) --requirement $$listed --no-deps --disable-pip --progress-spinner off \
	        --strict --format columns --output $(VENV)/audit 2> $(VENV)/audit.log || status=1; \
	    grep -qE '^(Found|No known)' $(VENV)/audit.log || { cat $(VENV)/audit.log >&2; \
	        echo "nothing was audited: no index of vulnerabilities knows these packages; run make audit where one is in reach"; exit 2; }; \
	    cat $(VENV)/audit.log $(VENV)/audit; \
	done; exit $$status

.PHONY: test-image
test-image: setup-test
	@echo "== building the image that the integration tests run (nothing when it is up to date)"
	$(BENCH) image build
	@echo "== removing what a crashed run may have left"
	$(BENCH) clean

# Tests on real targets wait most of their time; the others use the CPUs meanwhile, as far as nobody else wants them.
# There a test may fail for want of them alone: what failed is told, and run again by itself, which decides.
test: test-image
	@echo "== running the tests: those on real targets one after the other, the others behind them ($(BEHIND))"
	@$(LAST) $(PYTEST) $(APART) -n auto --dist worksteal -m "(not integration or beside) and not thorough" $(TESTS) \
	    > $(BEHIND) 2>&1 & behind=$$!; trap 'kill $$behind; wait' INT TERM; \
	$(PYTEST) -m "integration and not beside and not thorough" --durations=15 $(TESTS); real=$$?; \
	wait $$behind; other=$$?; cat $(BEHIND); \
	if test $$other -eq 1; then echo "== running what failed once more, now that the CPUs are free"; \
	    $(PYTEST) $(APART) --last-failed --last-failed-no-failures=none $(TESTS); again=$$?; \
	    test $$again -eq $(NO_TESTS) || other=$$again; fi; \
	for status in $$real $$other; do test $$status -eq 0 -o $$status -eq $(NO_TESTS) || exit $$status; done

test-all: test
	@echo "== building the Kubernetes that the tests start (3 to 9 minutes the first time, then nothing)"
	$(VENV)/bin/python -m tests.kubernetes_cluster build || echo "== without it, its tests are skipped"
	@echo "== running what make test leaves out, one after the other"
	VIRTBENCH_EMULATED_FULL=1 $(PYTEST) -m thorough --durations=15 $(TESTS) || test $$? -eq $(NO_TESTS)

# Nothing of what it installs is started: policy-rc.d refuses. One that is there already (containers have one) stays.
POLICY := /usr/sbin/policy-rc.d
test-openstack: test-image
	@test -e $(POLICY) || { trap '$(SUDO) rm $(POLICY)' EXIT; printf '#!/bin/sh\nexit 101\n' | \
	    $(SUDO) install -m 755 /dev/stdin $(POLICY); }; \
	$(MAKE) --no-print-directory packages NEEDED="$(OPENSTACK_PACKAGES)"
	$(SUDO) unshare --net --mount env VIRTBENCH_OPENSTACK=1 $(PYTEST) -s -m thorough tests/openstack

# KEEP=DIR keeps the disks for the next time.
test-machine: test-image
	$(VENV)/bin/python -m tests.machine $(if $(KEEP),--keep $(KEEP))

lint: $(VENV)/.installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: $(VENV)/.installed
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# The published schemas and the generated pages, after a change of what they are made from.
schema: $(VENV)/.installed
	$(VENV)/bin/python -m suite.schema
	$(VENV)/bin/python -m tests.reference
