# The commands of daily work. Each prepares what it needs; a second run prepares and rebuilds nothing.
#   make demo        build, fine-tune the shipped tiny model on two ranks, show before and after
#   make build       the program: build/release/strata
#   make test        every test, as continuous integration runs them
#   make fuzz        the fuzzers with libFuzzer (clang), FUZZ_SECONDS each (60)
#   make sanitize    tests of what is shared or parsed and of whole programs, by AddressSanitizer and ThreadSanitizer: hours;
#                    SANITIZER=asan: one of them, SANITIZE_UNITS and SANITIZE_TESTS: parts (tools/run_sanitized)
#   make tidy        clang-tidy over the sources that differ from SINCE (HEAD), or TIDY="--all", or files and folders
#   make bench-peer  the same job on the reference stack and on Strata, as ratios
#   make cuda        the program for NVIDIA GPUs: build/cuda/strata; needs nvcc, no GPU
#   make bundle      build/bundle: that program with its libraries, to run beside a torch with CUDA
#   make check-gpu   every check and benchmark that needs a GPU, on this machine, with a dated result
#   make rehearse-gpu  what of it emulated GPUs can show, on a machine without one
#   make format      clang-format over src, tests, bench and fuzz
#   make clean-all   remove everything that these commands made
# TORCH_DIR=<folder> uses an existing libtorch (its include/ and lib/); JOBS=<n> limits the compilers.
SHELL := /bin/bash
JOBS ?= $(shell nproc)
TORCH_DIR ?=
export JOBS TORCH_DIR

.PHONY: build cuda bundle check-gpu rehearse-gpu demo test fuzz sanitize tidy bench-peer format prepare prepare-cuda prepare-parity clean-all
.DEFAULT_GOAL := build

prepare:
	@tools/prepare build

prepare-parity:
	@tools/prepare parity

build: prepare
	@tools/compile strata

prepare-cuda:
	@tools/prepare cuda

cuda: prepare-cuda
	@PRESET=cuda tools/compile strata

bundle: prepare-cuda
	@PRESET=cuda tools/compile strata test_ops test_comm model_probe
	@tools/make_bundle build/cuda build/bundle

check-gpu:
	@tools/check_gpu $(ARGS)

rehearse-gpu: prepare-parity
	@tools/prepare emulated-gpu
	@PRESET=cuda tools/compile emulated_gpu_programs
	@.venv-parity/bin/python tools/check_gpu --emulated $(ARGS)

demo: build
	@examples/demo/run.sh

test: prepare-parity
	@tools/compile all
	@tools/run_tests

fuzz: prepare
	@fuzz/run_fuzzers

SANITIZER ?= asan tsan
sanitize: prepare-parity
	@failed=; for preset in $(SANITIZER); do tools/run_sanitized $$preset || failed=1; done; [ -z "$$failed" ]

# build.ninja as the target configures, where sources came or went since, and compiles nothing.
SINCE ?= HEAD
tidy:
	@tools/prepare tidy
	@PRESET=release tools/compile build.ninja
	@tools/check_tidy --since $(SINCE) $(TIDY)

bench-peer: prepare-parity build
	@.venv-parity/bin/python bench/peer/run_peer.py $(ARGS)

format:
	@tools/check_format --fix

clean-all:
	rm -rf build .venv .venv-parity .venv-tidy .cache outputs .pytest_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
