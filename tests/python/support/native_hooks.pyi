from typing import Any, final

FOLDER: str

@final
class Master:
    def __new__(
        cls,
        job: str = "default",
        host: str = "127.0.0.1",
        port: int = 0,
        key: str | None = None,
        lease: float = 10.0,
    ) -> Master: ...
    @property
    def port(self) -> int: ...
    def close(self) -> None: ...

@final
class MasterClient:
    def __new__(
        cls,
        host: str,
        port: int,
        id: str,
        record: str,
        job: str = "default",
        key: str | None = None,
        lease: float = 10.0,
    ) -> MasterClient: ...
    def put(self, record: str) -> None: ...
    def heard(self, timeout: float) -> list[tuple[str, str, str | None]]: ...
    def close(self) -> None: ...

@final
class TorchStore:
    def __new__(
        cls, host: str | None = None, port: int = 0, limit: int | None = None, connections: int | None = None
    ) -> TorchStore: ...
    @property
    def port(self) -> int: ...
    def renew(self) -> None: ...
    def close(self) -> None: ...

def bound_cpus(
    kind: str, ranks: int, devices: list[str | None], root: str = ..., allowed: str | None = None
) -> list[str]: ...
def parse_run(args: list[str], environ: dict[str, str]) -> dict[str, Any]: ...
def sync_with_paddle_master(
    host: str,
    port: int,
    job: str,
    size: int,
    name: str,
    rank: int,
    payload: str,
    timeout: float,
    sort_ip: bool = False,
) -> tuple[list[tuple[str, str]], int]: ...
def torch_devices(environ: dict[str, str]) -> list[str | None]: ...
