"""`make image-check`: builds the container image without a Docker engine and runs it as an
orchestrator would.

buildah builds the Dockerfile in a chroot, on a base image made by debootstrap that replaces the
named one. The image then runs with a read-only root, as its own user and without capabilities,
against a real Postgres: migrate, serve, health check, a job, stop."""

import re
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from app.db.embedded.server import EmbeddedPostgres
from app.db.migrations import ROOT
from tests.faults.db.proxy import proxy_to
from tests.ports import wait_until_serving
from tests.tools.image.base import Builder, build_base, image_config
from tests.tools.image.container import SOCKETS, Container, mounted

IMAGE = "localhost/longshore:check"
TOOLS = ("buildah", "debootstrap", "unshare", "setpriv")


def main() -> int:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        print(
            f"missing: {', '.join(missing)}. On Debian: apt-get install buildah debootstrap util-linux", file=sys.stderr
        )
        return 2
    with tempfile.TemporaryDirectory(prefix="image-check-") as name:
        folder = Path(name)
        buildah = Builder(folder)
        build(buildah, folder)
        config = image_config(buildah, IMAGE)
        with postgres(folder) as (dsn, sockets), mounted(buildah, IMAGE, config=config, sockets=sockets) as container:
            check(container, dsn)
    return 0


def build(buildah: Builder, folder: Path) -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    for base in sorted(set(re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE))):
        report(f"a substitute for {base}, by debootstrap")
        build_base(buildah, f"docker.io/library/{base}", folder / "base")
    report("buildah builds the Dockerfile")
    buildah("build", "--isolation=chroot", "--pull-never", "--format=docker", f"--tag={IMAGE}", str(ROOT))


@contextmanager
def postgres(folder: Path) -> Iterator[tuple[str, Path]]:
    """Runs an empty Postgres.

    Yields its DSN and a folder with a socket that the image's user may use."""
    with EmbeddedPostgres(folder / "data") as dsn, proxy_to(dsn) as proxy:
        url = urlsplit(proxy.dsn)
        sockets = Path(dict(part.split("=") for part in url.query.split("&"))["host"])
        for path in (sockets, *sockets.iterdir()):
            path.chmod(0o777)
        yield url._replace(query=f"host={SOCKETS}&port=5432").geturl(), sockets


def check(container: Container, dsn: str) -> None:
    report(f"added to the base: {container.size('/opt/venv', '/srv') // 2**20} MiB")
    report(f"migrate: {container.run('migrate', DATABASE_URL=dsn)}")
    key = container.run(
        "keys", "create", "--name=check", "--scope=enqueue", "--scope=work", "--scope=read", DATABASE_URL=dsn
    )
    environment = {"DATABASE_URL": dsn, "LONGSHORE_PORT": str(free_port())}
    broker = container.start(**environment)
    try:
        wait_until_serving(f"http://127.0.0.1:{environment['LONGSHORE_PORT']}", broker)
        report(f"serve: process {broker.pid} listens on port {environment['LONGSHORE_PORT']}")
        container.check_health(**environment)
        report("the image's health check passes")
        check_api(f"http://127.0.0.1:{environment['LONGSHORE_PORT']}", key)
        check_sandbox(container, broker.pid)
        broker.send_signal(signal.SIGTERM)
        assert broker.wait(30) == 0, f"exit status {broker.returncode}"
        report("stop: exit status 0 after SIGTERM")
    finally:
        broker.kill()
        broker.communicate()


def check_api(base: str, key: str) -> None:
    with httpx.Client(base_url=base, headers={"Authorization": f"Bearer {key}"}, timeout=30) as http:
        assert http.get("/readyz").raise_for_status().json()["ready"]
        job = http.post("/jobs", json={"job_type": "check"}).raise_for_status().json()
        (claimed,) = http.post("/claim", json={"worker_id": "check"}).raise_for_status().json()["jobs"]
        http.post(f"/jobs/{claimed['id']}/complete", json={"lease_token": claimed["lease_token"]}).raise_for_status()
        assert http.get(f"/jobs/{job['id']}").json()["state"] == "completed"
    report("ready; a job was enqueued, claimed and completed")


def check_sandbox(container: Container, pid: int) -> None:
    """Checks that the broker has its own uid, no capabilities, and cannot write to the image."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    assert status["Uid"] == ["65532"] * 4, status["Uid"]
    assert [status[name] for name in ("NoNewPrivs", "CapEff", "CapBnd")] == [["1"], ["0" * 16], ["0" * 16]]
    attempt = "import errno\ntry: open('/srv/new', 'w')\nexcept OSError as error: print(errno.errorcode[error.errno])"
    assert container.execute(["python", "-c", attempt]) == "EROFS"
    report("uid 65532, no capabilities, no new privileges, read-only root")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def report(line: str) -> None:
    print(f"image-check: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
