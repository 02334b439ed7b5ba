#!/usr/bin/env bash
# The kernel tests under AddressSanitizer: no access outside the arrays, in any instruction set.
# Builds a copy of the package with -fsanitize=address beside the installed one.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-.venv/bin/python}
SITE=$(mktemp -d)
trap 'rm -rf "$SITE"' EXIT
"$PYTHON" -m pip install --quiet --no-deps --no-build-isolation --target "$SITE" \
  -C cmake.define.MITHRIDATE_SANITIZE=address . 2>/dev/null
nm -D "$SITE"/mithridate/native/_kernels*.so | grep -q __asan_ || { echo "built without AddressSanitizer"; exit 1; }
# detect_leaks=0: the interpreter itself does not free everything at its end.
ASAN_OPTIONS=detect_leaks=0 MITHRIDATE_KERNELS=native \
  LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libstdc++.so)" \
  "$PYTHON" scripts/with_package.py "$SITE" -m pytest -q -p no:cacheprovider tests/test_native.py tests/test_pool.py tests/test_fast.py "$@"
