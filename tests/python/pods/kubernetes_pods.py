"""Pods on hosts of this machine: containers that run as their manifests say, and find each other by name."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import seccomp
from hosts import Host
from launching import LIMIT, Ended, Place, marked, until
from manifests import Container, containers
from paths import FOLDERS, ROOT

SETUP = Path(__file__).with_name("container_setup.py")
CLONE_NAMESPACES = 0x7E020000
# What the default profiles of containerd and Docker refuse a process without capabilities, of the calls that
# a launcher or a framework could use. containerd's refuses process_vm_readv, Docker's does not; profiles for
# Linux before 4.8 refuse ptrace.
REFUSED = """
acct add_key bpf chroot clock_settime delete_module fanotify_init finit_module fsconfig fsmount
fsopen fspick get_mempolicy init_module io_uring_enter io_uring_register io_uring_setup kcmp
kexec_file_load kexec_load keyctl lookup_dcookie mbind migrate_pages mount mount_setattr move_mount
move_pages open_by_handle_at open_tree perf_event_open pidfd_getfd pivot_root process_madvise
process_vm_readv process_vm_writev ptrace quotactl reboot request_key set_mempolicy setdomainname
sethostname setns settimeofday swapoff swapon syslog umount2 unshare userfaultfd vhangup
"""


def profile() -> list[dict[int, int]]:
    """Arguments of `seccomp.refuse`.

    clone3 does not exist there, because a filter cannot read its flags. clone makes no namespaces.
    """
    numbers = seccomp.numbers()
    calls = {numbers[name]: errno.EPERM for name in REFUSED.split() if name in numbers}
    return [calls | {numbers["clone3"]: errno.ENOSYS}, {numbers["clone"]: CLONE_NAMESPACES}]


def setup(action: str, spec: dict[str, Any]) -> list[str]:
    return [sys.executable, str(SETUP), action, json.dumps(spec)]


@dataclass
class Pod:
    """One that has not been started, or runs."""

    container: Container
    host: Host
    folder: Path
    hosts_file: Path
    mark: str
    changes: dict[str, str]
    runtime: subprocess.Popen[bytes] | None = None
    spec: dict[str, Any] = field(default_factory=dict)

    @property
    def tmp(self) -> Path:
        """Its emptyDir at /tmp."""
        return self.folder / "tmp"

    @property
    def pid(self) -> int:
        """Of the container's process 1, as this machine numbers it."""
        runtime, file = self.runtime, self.folder / "pid"
        assert runtime is not None
        until(lambda: file.exists() or runtime.poll() is not None, "the container")
        assert file.exists(), runtime.communicate()
        return int(file.read_text())

    def start(self, command: list[str] | None = None) -> None:
        for folder in ("root", "tmp"):
            (self.folder / folder).mkdir(parents=True)
        self.tmp.chmod(0o777)
        container, pod = self.container, self.container.pod
        check_supported(container)
        commands = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
        user = pod["securityContext"]
        self.spec = {
            "hostname": container.hostname,
            "root": str(self.folder / "root"),
            "emptyDir": str(self.tmp),
            "app": str(self.folder.parent / "app"),
            "image": sorted({str(ROOT), sys.prefix, sys.base_prefix}),
            "hosts": str(self.hosts_file),
            "uid": user["runAsUser"],
            "gid": user["runAsGroup"],
            "refused": profile(),
            "workingDir": container.spec["workingDir"],
            "command": command or container.command,
            "env": {"PATH": commands, **container.env, **self.changes, "MARK": self.mark},
            "pidFile": str(self.folder / "pid"),
        }
        self.runtime = self.host.run(
            setup("run", self.spec),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, FOLDERS))},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def exec(self, *command: str) -> subprocess.CompletedProcess[str]:
        """`kubectl exec`, and a preStop hook."""
        enter = ["nsenter", f"--target={self.pid}", "--mount", "--uts", "--ipc", "--net", "--pid", "--root"]
        return subprocess.run(
            [*enter, "--", *setup("exec", {**self.spec, "command": command})],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, FOLDERS))},
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )

    def terminate(self) -> None:
        """The kubelet's SIGTERM to process 1."""
        os.kill(self.pid, signal.SIGTERM)

    def wait(self) -> Ended:
        assert self.runtime is not None
        return Place.wait(self.runtime)


def check_supported(container: Container) -> None:
    """That the manifest asks for what container_setup.py does."""
    own, pod = container.spec["securityContext"], container.pod["securityContext"]
    assert own == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert {one["mountPath"] for one in container.spec["volumeMounts"]} == {"/tmp", "/dev/shm"}


@contextlib.contextmanager
def pods(file: str, script: str, folder: Path, hosts: list[Host], **changes: str) -> Iterator[list[Pod]]:
    """The pods of a manifest, which run this script, with other variables beside the manifest's."""
    mark, secret = secrets.token_hex(16), secrets.token_hex(32)
    made = containers(file, secret)
    assert len(made) == len(hosts)
    (folder / "app").mkdir()
    (folder / "app/train.py").write_text(script)
    names = folder / "hosts"
    lines = [f"{host.ip} {one.hostname}.{one.subdomain}\n" for host, one in zip(hosts, made, strict=True)]
    names.write_text("127.0.0.1 localhost\n" + "".join(lines))
    found = [
        Pod(one, host, folder / one.hostname, names, mark, changes)
        for one, host in zip(made, hosts, strict=True)
    ]
    try:
        yield found
    finally:
        for pod in found:
            if pod.runtime is not None:
                # Kills its container too.
                pod.runtime.kill()
                pod.runtime.communicate()
        for pid in marked(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
