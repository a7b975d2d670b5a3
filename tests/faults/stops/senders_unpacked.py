"""Senders of the stop matrix that need Debian's packages, unpacked for the test cluster: Slurm, sshd."""

from __future__ import annotations

import getpass
import os
import shlex
from pathlib import Path

from slurm_cluster import PACKAGES
from stop_cell import LIMIT, StopCell, sender


@sender(
    "slurm",
    "Slurm's `scancel`",
    "A batch job with `srun launcher ...` in the test cluster. Slurm sends SIGTERM, SIGCONT and SIGTERM to "
    "the step.",
)
def slurm(job: StopCell) -> None:
    assert job.cluster is not None
    script = f"#!/bin/sh\nsrun --nodes=1 --ntasks=1 {job.line}\n"
    batch = job.cluster.submit(script, "--nodes=1", folder=job.folder)
    job.await_ready()
    job.sends()
    job.cluster.run("scancel", str(batch.number))
    job.await_launcher()
    batch.await_end()
    job.status = batch.state


# sshd needs its user, and an account that has no password may not be locked.
PASSWD = "root:x:0:0:root:{home}:/bin/sh\nsshd:x:107:65534::/run/sshd:/usr/sbin/nologin\n"
SHADOW = "root:*:19000:0:99999:7:::\nsshd:!:19000:0:99999:7:::\n"
# In a mount namespace: Debian's packages over /usr, the users of sshd, and the folder that it needs in /run.
SESSION = """
set -e
mount --make-rprivate /
mount -t overlay -o lowerdir="$1/usr:/usr" overlay /usr
mount -t tmpfs tmpfs /run
mkdir /run/sshd
mount --bind passwd /etc/passwd
mount --bind shadow /etc/shadow
ssh-keygen -q -t ed25519 -N "" -f key
cp key.pub authorized
shift
exec "$@"
"""
SSHD = """
HostKey {folder}/key
AuthorizedKeysFile {folder}/authorized
PermitRootLogin yes
StrictModes no
UsePAM no
PidFile none
"""


@sender(
    "ssh",
    "A closed ssh session",
    "`ssh -tt host launcher ...`, whose client is killed. sshd closes the terminal, and the kernel sends "
    "SIGHUP.",
)
def ssh(job: StopCell) -> None:
    (job.folder / "passwd").write_text(PASSWD.format(home=job.folder))
    (job.folder / "shadow").write_text(SHADOW)
    (job.folder / "sshd.conf").write_text(SSHD.format(folder=job.folder))
    # sshd serves one connection at the client's pipes, as inetd starts it: no port, no daemon.
    server = f"/usr/sbin/sshd -i -e -f {shlex.quote(str(job.folder / 'sshd.conf'))}"
    options = [f"ProxyCommand={server}", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null"]
    client = ["ssh", "-F", "none", "-tt", "-i", "key", *(word for one in options for word in ("-o", one))]
    line = f"cd {shlex.quote(str(job.folder))} && exec {job.line}"
    process = job.start(
        *["unshare", "--mount", "sh", "-c", SESSION, "sh", PACKAGES, *client, "root@host", line]
    )
    job.await_ready()
    job.sends()
    process.kill()
    process.wait(LIMIT)
    job.await_launcher()


def missing() -> str | None:
    """What these senders need and this machine lacks."""
    if os.geteuid() != 0:
        return f"they need root, for namespaces and mounts, and this is {getpass.getuser()}"
    program = Path("usr/sbin/sshd")
    if not (PACKAGES / program).exists() and not Path("/", program).exists():
        return "sshd is missing; `rm -r target/slurm; make target/slurm/unpacked` unpacks it"
    return None
