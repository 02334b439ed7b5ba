#!/usr/bin/env bash
# The kernel tests under ThreadSanitizer: threads of the pool never touch the same memory at once.
# Builds a copy of the package with -fsanitize=thread beside the installed one.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-.venv/bin/python}
SITE=$(mktemp -d)
trap 'rm -rf "$SITE"' EXIT
"$PYTHON" -m pip install --quiet --no-deps --no-build-isolation --target "$SITE" \
  -C cmake.define.MITHRIDATE_SANITIZE=thread . 2>/dev/null
nm -D "$SITE"/mithridate/native/_kernels*.so | grep -q __tsan_ || { echo "built without ThreadSanitizer"; exit 1; }
# PyTorch and the interpreter are not instrumented: what they synchronise by is not seen, so only what
# happens between our own threads counts. setarch -R: the sanitizer needs addresses where it expects them.
TSAN_OPTIONS="ignore_noninstrumented_modules=1 halt_on_error=1 exitcode=66 die_after_fork=0" MITHRIDATE_KERNELS=native \
  LD_PRELOAD="$(g++ -print-file-name=libtsan.so) $(g++ -print-file-name=libstdc++.so)" \
  setarch -R "$PYTHON" scripts/with_package.py "$SITE" -m pytest -q -p no:cacheprovider \
  tests/test_native.py tests/test_pool.py tests/test_fast.py "$@"
