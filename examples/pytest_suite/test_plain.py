"""Without a framework: messages between ranks, and where fixtures run."""

import os
import socket
from pathlib import Path

import pytest

pytestmark = pytest.mark.ranks(2)


def test_all_ranks_know_their_identity(rank):
    assert rank.gather(rank.rank) == [0, 1]
    assert int(os.environ["RANK"]) == int(os.environ["PADDLE_TRAINER_ID"]) == rank.rank
    assert rank.gather(os.environ["MASTER_PORT"]) == [os.environ["MASTER_PORT"]] * 2


def test_a_value_of_one_rank_reaches_all(rank):
    drawn = os.urandom(8) if rank.rank == 1 else None
    assert rank.gather(rank.broadcast(drawn, src=1))[0] == rank.gather(drawn)[1]


@pytest.mark.parametrize("size", [0, 1, 1_000_000])
def test_messages_of_any_size(rank, size):
    assert rank.gather(b"x" * size) == [b"x" * size] * 2


def test_the_folder_is_the_same_for_all(rank, tmp_path: Path):
    (tmp_path / f"from-{rank.rank}").touch()
    rank.barrier()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["from-0", "from-1"]


@pytest.mark.ranks(3, shared=["table"])
def test_a_shared_fixture_is_made_once(rank, table, share, helper_process):
    assert {each["made_by"] for each in rank.gather(table)} == {table["made_by"]}
    assert table["made_by"] != os.getpid()
    assert sorted(row for part in rank.gather(share) for row in part) == list(range(1000))
    assert len(set(rank.gather(helper_process))) == rank.world_size


class TestOfAClass:
    """A marker on the class or the module counts for its tests; the nearest one wins."""

    @pytest.fixture(autouse=True)
    def _listening(self, rank, record_property):
        """Rank 0 listens at the port that was kept free for it."""
        record_property("master_port", os.environ["MASTER_PORT"])
        self.address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        self.server = socket.create_server(self.address) if rank.rank == 0 else None
        rank.barrier()
        yield
        if self.server is not None:
            self.server.close()

    def test_ranks_meet_at_the_masters_port(self, rank):
        if self.server is None:
            with socket.create_connection(self.address) as line:
                line.sendall(b"hello")
        else:
            with self.server.accept()[0] as line:
                assert line.recv(5) == b"hello"

    @pytest.mark.ranks(1)
    def test_alone(self, rank):
        assert (rank.rank, rank.world_size) == (0, 1)


@pytest.mark.ranks(2, start_method="spawn")
def test_in_a_new_interpreter(rank):
    """Ranks with a ``start_method`` are not forked from the process that ``ranks_preload`` is imported in."""
    assert "torch" not in __import__("sys").modules
