"""Prints the path of the Python that `make` uses for .venv.

Usage: choose_python.py PYTHON, the interpreter that is first on the PATH.

An interpreter that was built without optimizations, as pyenv builds by default, takes 1.4 to 2
times the CPU. If PYTHON was built so, prints that of the distribution instead, if it is new enough:
distributions build with optimizations.
"""

import subprocess
import sys

DISTRIBUTION = "/usr/bin/python3"
QUESTION = """
import ctypes, ssl, sys, sysconfig, zlib
options = sysconfig.get_config_var("CONFIG_ARGS") or ""
# Debian's build passes its profile to `make`, so none of its variables says that it is optimized.
print(sys.version_info >= (3, 11), "--enable-optimizations" in options or sys.prefix == "/usr", sys.executable)
"""


def inspect(python: str) -> tuple[bool, bool, str]:
    """Returns whether the interpreter can be used, whether it is optimized, and its path."""
    try:
        answer = subprocess.run([python, "-c", QUESTION], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return False, False, python
    supported, optimized, path = answer.strip().split(" ", 2)
    return supported == "True", optimized == "True", path


def main() -> None:
    _, optimized, path = inspect(sys.argv[1])
    if not optimized:
        supported, better, distribution = inspect(DISTRIBUTION)
        if supported and better:
            print(f"{path} was built without optimizations. Uses {distribution} for .venv.", file=sys.stderr)
            path = distribution
        else:
            print(f"{path} was built without optimizations: the broker takes up to twice the CPU.", file=sys.stderr)
    print(path)


if __name__ == "__main__":
    main()
