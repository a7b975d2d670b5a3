"""RPC jobs: ranks that know a store, and where each of them listens."""

from __future__ import annotations

import contextlib
from pathlib import Path

from launching import Place, environment
from test_launch_ps import addresses

CALLS = """
    import socket
    def at(name):
        host, port = os.environ[name].split(":")
        return host, int(port)
    size = int(os.environ["PADDLE_TRAINERS_NUM"])
    own = socket.create_server(at("PADDLE_WORKER_ENDPOINT"))
    if rank == 0:
        # The store: each rank writes its endpoint, and reads those of all.
        store = socket.create_server(at("PADDLE_MASTER_ENDPOINT"))
        tell("ready")
        there = [store.accept()[0] for _ in range(size - 1)]
        known = [os.environ["PADDLE_WORKER_ENDPOINT"], *(one.recv(99).decode() for one in there)]
        for one in there:
            one.sendall(" ".join(known).encode())
    else:
        await_file("ready.0")
        with socket.create_connection(at("PADDLE_MASTER_ENDPOINT")) as store:
            store.sendall(os.environ["PADDLE_WORKER_ENDPOINT"].encode())
            known = store.recv(999).decode().split()
    for endpoint in known:
        host, port = endpoint.split(":")
        with socket.create_connection((host, int(port))) as there:
            there.sendall(str(rank).encode())
    print(sorted(own.accept()[0].recv(9) for _ in known))
"""


def test_ranks_of_an_rpc_job_call_each_other(place: Place) -> None:
    place.script(CALLS)
    ended = place.run("--run_mode=rpc", "--nproc_per_node=2", "train.py")
    assert ended.status == 0, ended.stderr
    assert place.log(0) == place.log(1) == b"[b'0', b'1']\n"
    assert "mode rpc, replicas 1[1:1]" in ended.stderr


def test_an_rpc_job_of_two_nodes_has_a_store_and_logs_by_global_rank(tmp_path: Path) -> None:
    shared = Place(tmp_path)
    shared.script(CALLS)
    # Both launchers are on one machine, whose ports are not counted for each address.
    first, second = addresses(3, "127.0.0.2"), addresses(2, "127.0.0.3")
    env = environment(PADDLE_TRAINER_ENDPOINTS=",".join([*first[:2], *second]))
    with contextlib.ExitStack() as stack:
        launchers = [
            stack.enter_context(
                Place(tmp_path).start("--run_mode=rpc", "--nproc_per_node=2", f"--host={host}",
                                      f"--log_dir=log{host[-1]}", "train.py", env=env)
            )
            for host in ("127.0.0.2", "127.0.0.3")
        ]  # fmt: skip
        ends = [Place.wait(launcher) for launcher in launchers]
    assert [end.status for end in ends] == [0, 0], ends
    logs = [Path(tmp_path, folder, f"workerlog.{rank}") for folder, rank in
            (("log2", 0), ("log2", 1), ("log3", 2), ("log3", 3))]  # fmt: skip
    assert [log.read_bytes() for log in logs] == [b"[b'0', b'1', b'2', b'3']\n"] * 4
