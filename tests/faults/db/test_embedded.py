"""The embedded Postgres with real binaries: it keeps data, names its owner, stops with it, and
cleans up after a killed one.
"""

import asyncio
import os
import pwd
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import pytest

from app.db.embedded import binaries
from app.db.embedded.server import EmbeddedError, EmbeddedPostgres, FolderInUse, find_binaries

OWNER = """
import sys
from pathlib import Path
from app.db.embedded.server import EmbeddedPostgres
print(EmbeddedPostgres(Path(sys.argv[1])).start(), flush=True)
sys.stdin.read()
"""
FAST_OPTIONS = {"shared_buffers": "1MB", "max_connections": "10", "fsync": "off"}


def query(dsn: str, statement: str) -> object:
    async def query() -> object:
        connection = await asyncpg.connect(dsn)
        try:
            return await connection.fetchval(statement)
        finally:
            await connection.close()

    return asyncio.run(query())


def wait_for(condition: Callable[[], bool], *, limit: float = 60.0) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not (stat.exists() and ") Z " in stat.read_text())  # a zombie is dead, but not reaped yet


def postmaster_pid(folder: Path) -> int:
    return int((folder / "data" / "postmaster.pid").read_text().split()[0])


def start(folder: Path) -> EmbeddedPostgres:
    return EmbeddedPostgres(folder, options=FAST_OPTIONS)


@contextmanager
def accessible_folder() -> Iterator[Path]:
    """A folder that other users can enter, unlike `tmp_path`: otherwise root cannot start a
    system's Postgres 15.
    """
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name, "postgres")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Path]:
    """One folder for all tests that do not depend on its content, because initdb is slow."""
    with accessible_folder() as folder:
        yield folder


@pytest.fixture
def empty_folder() -> Iterator[Path]:
    with accessible_folder() as folder:
        yield folder


@pytest.fixture
def owner(cluster: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, cluster], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("postgresql://")
        yield process
        process.kill()


def test_data_survives_a_restart(cluster: Path) -> None:
    with start(cluster) as dsn:
        query(dsn, "CREATE TABLE kept AS SELECT 42 AS answer")
    with start(cluster) as dsn:
        assert query(dsn, "SELECT answer FROM kept") == 42


def test_embedded_server_has_checksums_utf8_and_no_tcp_port(cluster: Path) -> None:
    with start(cluster) as dsn:
        settings = [query(dsn, f"SHOW {name}") for name in ("data_checksums", "server_encoding", "listen_addresses")]
    assert settings == ["on", "UTF8", ""]


def test_stopping_leaves_no_process_and_no_temporary_folder(cluster: Path) -> None:
    server = start(cluster)
    dsn = server.start()
    pid, sockets = postmaster_pid(cluster), Path(dsn.partition("host=")[2].partition("&")[0])
    server.stop()
    assert not is_alive(pid)
    assert not sockets.parent.exists()


def test_second_start_fails_and_names_the_owner(cluster: Path) -> None:
    with start(cluster), pytest.raises(FolderInUse, match=rf"in use by process {os.getpid()} \(since "):
        start(cluster).start()


def test_killed_owner_leaves_no_postgres_and_the_next_start_has_its_data(
    cluster: Path, owner: subprocess.Popen[str]
) -> None:
    pid = postmaster_pid(cluster)
    owner.kill()
    owner.wait()
    if sys.platform == "linux":
        wait_for(lambda: not is_alive(pid))
    with start(cluster) as dsn:
        assert not is_alive(pid)
        assert query(dsn, "SELECT 1") == 1


def test_start_right_after_the_owner_was_killed_waits_for_the_old_server(
    cluster: Path, owner: subprocess.Popen[str]
) -> None:
    owner.kill()
    owner.wait()
    with start(cluster) as dsn:
        assert query(dsn, "SELECT 1") == 1


def test_next_start_recovers_after_the_postmaster_was_killed(cluster: Path) -> None:
    server = start(cluster)
    dsn = server.start()
    query(dsn, "CREATE TABLE IF NOT EXISTS survived AS SELECT 1 AS one")
    os.kill(postmaster_pid(cluster), signal.SIGQUIT)  # ends without a checkpoint
    server.stop()
    with start(cluster) as dsn:
        assert query(dsn, "SELECT one FROM survived") == 1


def test_killed_postmaster_is_restarted_at_the_same_address(cluster: Path) -> None:
    server = start(cluster)
    with server as dsn:
        server.restart_on_exit()
        query(dsn, "CREATE TABLE IF NOT EXISTS survived AS SELECT 1 AS one")
        for _ in range(2):
            killed = postmaster_pid(cluster)
            os.kill(killed, signal.SIGKILL)
            wait_for(lambda: returns_one(dsn, "SELECT one FROM survived") and postmaster_pid(cluster) != killed)  # noqa: B023
        last = postmaster_pid(cluster)
    assert not is_alive(last)


def returns_one(dsn: str, statement: str) -> bool:
    try:
        return query(dsn, statement) == 1
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        return False


def test_ctrl_c_in_the_terminal_does_not_reach_postgres(cluster: Path) -> None:
    with start(cluster):
        assert os.getpgid(postmaster_pid(cluster)) != os.getpgid(0)


def test_start_ignores_a_stale_pid_file_with_the_pid_of_another_process(cluster: Path) -> None:
    with start(cluster):
        lines = (cluster / "data" / "postmaster.pid").read_text().splitlines()
    with subprocess.Popen(["sleep", "600"]) as other_process:
        (cluster / "data" / "postmaster.pid").write_text("\n".join([str(other_process.pid), *lines[1:], ""]))
        with start(cluster) as dsn:
            assert query(dsn, "SELECT 1") == 1
        assert other_process.poll() is None
        other_process.kill()


def test_folder_of_another_major_version_is_refused_with_an_explanation(cluster: Path) -> None:
    with start(cluster):
        pass
    version = cluster / "data" / "PG_VERSION"
    real = version.read_text()
    version.write_text("9\n")
    try:
        with pytest.raises(EmbeddedError, match="created by Postgres 9"):
            start(cluster).start()
    finally:
        version.write_text(real)


def test_error_of_a_server_that_cannot_start_includes_its_log(cluster: Path) -> None:
    with pytest.raises(EmbeddedError, match=r"(?s)postgres\.log ends with:.*no_such_setting"):
        EmbeddedPostgres(cluster, options={"no_such_setting": "1"}).start()


def test_start_succeeds_after_an_interrupted_initdb(empty_folder: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, empty_folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        wait_for(lambda: any(empty_folder.glob("data.new-*/*")))
        process.kill()
    assert not (empty_folder / "data").exists()
    with start(empty_folder) as dsn:
        assert query(dsn, "SELECT 1") == 1
        assert not list(empty_folder.glob("data.new-*"))


def test_start_succeeds_in_a_long_path_below_an_inaccessible_folder(tmp_path: Path) -> None:
    """If the test runs as root, Postgres runs as another user, which cannot enter, for example,
    root's home. The length of the socket's path is limited.
    """
    if os.geteuid() == 0 and binaries.version_of(find_binaries()) < 16:
        pytest.skip("needs Postgres 16")
    (inaccessible := tmp_path / "closed").mkdir(mode=0o700)
    with start(inaccessible / ("long-" * 30) / "postgres") as dsn:
        assert query(dsn, "SELECT 1") == 1
    assert inaccessible.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the user")
def test_binaries_below_an_inaccessible_folder_are_copied(
    cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if find_binaries().parent.parent.name != binaries.PACKAGE:
        pytest.skip("all users can run the system's binaries")
    (inaccessible := tmp_path / "closed").mkdir()
    hidden = binaries.copy_readable_by_all(find_binaries(), inaccessible)
    inaccessible.chmod(0o700)
    monkeypatch.setattr("app.db.embedded.server.find_binaries", lambda: hidden)
    with start(cluster) as dsn:
        assert query(dsn, "SELECT 1") == 1


def test_error_without_binaries_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    monkeypatch.setattr(binaries, "_system_folders", list)
    with pytest.raises(EmbeddedError, match="DATABASE_URL"):
        find_binaries()


def test_uid_without_passwd_entry_is_reported_before_anything_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown_uid = next(uid for uid in range(54321, 2**31) if not has_passwd_entry(uid))
    monkeypatch.setattr(os, "geteuid", lambda: unknown_uid)
    with pytest.raises(EmbeddedError, match=f"uid {unknown_uid} has no entry in /etc/passwd.*useradd.*DATABASE_URL"):
        EmbeddedPostgres(tmp_path / "postgres").start()
    assert list(tmp_path.iterdir()) == []


def has_passwd_entry(uid: int) -> bool:
    return any(entry.pw_uid == uid for entry in pwd.getpwall())
