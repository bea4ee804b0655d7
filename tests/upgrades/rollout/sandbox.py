"""A sandbox without a container: read-only file system, no capabilities, no way to gain any.

These are the guarantees of the container image. The sandbox needs Linux, util-linux, and
permission to create a mount namespace (root, or user namespaces)."""

import os
import subprocess
import sys

# Remounts everything but the kernel's file systems read-only, in a private mount namespace.
READ_ONLY = """
mount --make-rprivate / || exit 77
for mount_point in $(awk '{ print $5 }' /proc/self/mountinfo | sort -u); do
    case "$mount_point" in
        /proc*|/sys*|/dev*) ;;
        *) mount -o remount,bind,ro "$mount_point" || exit 77 ;;
    esac
done
exec setpriv --no-new-privs --bounding-set=-all --inh-caps=-all "$@"
"""
NAMESPACE = ("unshare", "--mount") if os.geteuid() == 0 else ("unshare", "--map-root-user", "--mount")
SANDBOX = (*NAMESPACE, "sh", "-c", READ_ONLY, "sandbox")


def _is_available() -> bool:
    if sys.platform != "linux":
        return False
    try:
        return subprocess.run([*SANDBOX, "true"], capture_output=True, check=False, timeout=60).returncode == 0
    except OSError:
        return False


IS_AVAILABLE = _is_available()
