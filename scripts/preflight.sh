#!/bin/sh
# Looks at the machine before anything long starts.
#   preflight.sh python   prints a Python of 3.11 or newer ($PYTHON, else the first one found)
#   preflight.sh java     checks that Spark will find a Java of 17 or newer (JAVA_HOME, else the path)
# Says in plain words what is missing, and exits with 2.
set -u

stop() {
    printf '\nheadrace cannot start: %s\n' "$1" >&2
    shift
    for line in "$@"; do printf '  %s\n' "$line" >&2; done
    printf '\n' >&2
    exit 2
}

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        command -v "$PYTHON" >/dev/null 2>&1 || stop "PYTHON=$PYTHON is not a command here."
        is_new_enough "$PYTHON" || stop "it needs Python 3.11 or newer, and PYTHON=$PYTHON is $(version_of "$PYTHON")."
        printf '%s\n' "$PYTHON"
        return
    fi
    for candidate in python3 python3.13 python3.12 python3.11 python; do
        if is_new_enough "$candidate"; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    if command -v python3 >/dev/null 2>&1; then
        found="python3 on the path is $(version_of python3)."
    else
        found="there is no python3 on the path."
    fi
    stop "it needs Python 3.11 or newer, and $found" \
        "Install one (Debian, Ubuntu: apt install python3 python3-venv; macOS: brew install python)," \
        "or say where it is: make PYTHON=/path/to/python3.11 ..."
}

version_of() {
    "$1" -c 'import sys; print("Python %d.%d.%d" % sys.version_info[:3])' 2>/dev/null || printf 'not a working Python'
}

check_java() {
    install="Install one (Debian, Ubuntu: apt install openjdk-17-jre-headless; macOS: brew install openjdk@17),"
    if [ -n "${JAVA_HOME:-}" ]; then
        java="$JAVA_HOME/bin/java"
        where="JAVA_HOME is $JAVA_HOME"
    else
        java=java
        where="java on the path"
    fi
    command -v "$java" >/dev/null 2>&1 || missing_java
    # `java -version` writes 'openjdk version "17.0.15" …' or, before Java 9, 'java version "1.8.0_402"'.
    version=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9][0-9.]*\).*/\1/p' | sed -n 1p)
    [ -n "$version" ] || missing_java
    major=${version%%.*}
    [ "$major" = 1 ] && major=$(printf '%s' "$version" | cut -d. -f2)
    [ "$major" -ge 17 ] || stop "Spark needs Java 17 or newer, and $where is Java $version." \
        "$install" "or point JAVA_HOME at it."
}

missing_java() {
    if [ -n "${JAVA_HOME:-}" ]; then
        stop "Spark needs Java 17 or newer, and JAVA_HOME ($JAVA_HOME) has no working bin/java." \
            "Point JAVA_HOME at a Java 17 or newer, or unset it to use the java on the path."
    fi
    stop "Spark needs Java 17 or newer, and there is no java on the path." \
        "$install" "or point JAVA_HOME at it."
}

case "${1:-}" in
    python) find_python ;;
    java) check_java ;;
    *) echo "usage: preflight.sh python|java" >&2; exit 2 ;;
esac
