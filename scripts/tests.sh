#!/usr/bin/env bash
# All tests: those that need Java, and beside them those that do not. With arguments, pytest with these.
set -euo pipefail
python=$1
shift
if [ $# -gt 0 ]; then
  exec "$python" -m pytest "$@"
fi
needs_java="spark or kafka or connect"
said=$(mktemp)
"$python" -m pytest -p no:cacheprovider -m "not chaos and not ($needs_java)" >"$said" 2>&1 &
other=$!
trap 'kill "$other" 2>/dev/null || true; rm -f "$said"' EXIT
status=0
"$python" -m pytest -m "not chaos and ($needs_java)" || status=$?
wait "$other" || status=$?
cat "$said"
exit "$status"
