#!/bin/sh
# Makes .venv hold exactly what requirements.lock says, and this project in editable form.
# Says nothing and does nothing when that is so already.
set -eu
cd "$(dirname "$0")/.."

stamp=.venv/.headgate-setup
here=$(pwd -P)
wanted=$(cat requirements.lock tools/bootstrap.lock pyproject.toml tools/setup.sh | cksum)

if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$here
$wanted" ] && .venv/bin/python -c '' 2>/dev/null; then
    exit 0
fi

find_python() {
    for name in python3 python3.11 python3.12 python3.13 python3.14; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            if "$name" -c 'import venv, ensurepip' 2>/dev/null; then
                command -v "$name"
                return
            fi
            without_venv=$name
        fi
    done
    if [ -n "${without_venv:-}" ]; then
        echo "$without_venv has no venv module: install it (Debian, Ubuntu: python3-venv)." >&2
    else
        echo "Headgate needs Python 3.11 or newer with venv; none of python3, python3.11," >&2
        echo "python3.12, python3.13, python3.14 on the PATH is one. Install one, then try again." >&2
    fi
    return 1
}

# Programs in a venv carry its place in them: one that was made elsewhere, or never finished, is
# made anew.
if [ ! -f "$stamp" ] || [ "$(head -n 1 "$stamp")" != "$here" ] \
    || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    python=$(find_python)
    echo "setup: a new .venv with $("$python" --version)"
    "$python" -m venv --clear .venv
fi
rm -f "$stamp"

echo "setup: installing the locked packages (the first time takes a minute or two)"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes \
    -r tools/bootstrap.lock
# uv does not read pip's configuration; where only pip knows the way to the packages, pip brings
# them, from the same lock.
.venv/bin/uv pip sync --quiet --python .venv/bin/python requirements.lock || {
    echo "setup: uv could not install them; trying pip"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes \
        -r requirements.lock
}
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-index --no-deps \
    --no-build-isolation --editable .
printf '%s\n%s\n' "$here" "$wanted" > "$stamp"
echo "setup: done"
