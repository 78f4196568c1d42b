#!/bin/sh
# Fills .venv from the lock files; nothing outside the folder is touched.
#   install.sh PYTHON
set -eu
python=$1
pip=".venv/bin/python -m pip install --quiet --disable-pip-version-check --require-virtualenv"

step() { printf '· %s\n' "$1"; }

if ! .venv/bin/python -c '' 2>/dev/null; then
    step "creating .venv with $("$python" --version)"
    rm -rf .venv
    if ! "$python" -m venv .venv; then
        rm -rf .venv
        printf '\nheadrace cannot start: %s\n  %s\n\n' "$python cannot make a virtual environment." \
            "Debian, Ubuntu: apt install python3-venv" >&2
        exit 2
    fi
fi
step "installing $(grep -c '^[a-z].*==' requirements.lock) pinned packages (Spark is large: a few minutes the first time)"
# pyspark ships as source, so what builds it is pinned first, and used instead of the newest one.
$pip --require-hashes -r requirements-build.lock
$pip --require-hashes --no-build-isolation -r requirements.lock
step "installing headrace from this folder"
$pip --no-deps --no-build-isolation --editable .
