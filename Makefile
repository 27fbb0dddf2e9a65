SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
PY := .venv/bin/python
.PHONY: setup build demo test lint check bench lab clean

setup:
	@tools/setup

build: setup

protos:
	@$(PY) tools/protogen.py . build/gen
