"""A notice of preemption to ranks whose data loader has worker processes: none of these gets a signal."""

from __future__ import annotations

from pathlib import Path

from launching import Place
from steps import PREEMPTED, events, variables

# The worker has a handler of its own: torch's would end it by SIGTERM.
TRAINS = """
import multiprocessing, signal, time
import rlaunch
from torch.utils.data import DataLoader, IterableDataset

def note_signals(name):
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: tell(f"{name}.got.{number}"))

class Samples(IterableDataset):
    def __iter__(self):
        note_signals("worker")
        sample = 0
        while True:
            yield sample
            sample += 1
            time.sleep(0.002 * (1 + rank))

note_signals("rank")
step = 0
for batch in DataLoader(Samples(), batch_size=1, num_workers=1):
    assert batch.item() == step
    if rlaunch.should_stop(step):
        tell("stopped", step)
        (worker,) = multiprocessing.active_children()
        tell("worker.alive", worker.is_alive())
        break
    if step == 3:
        tell("ready", os.getpid())
    step += 1
"""


def test_a_notice_by_a_file_signals_no_data_loader_worker(place: Place, tmp_path: Path) -> None:
    # Each imports torch itself: those of `preloaded` are in no process group that a launcher could signal.
    place.script(TRAINS)
    options = ["--nproc_per_node=2", f"--preempt_file={tmp_path / 'notice'}"]
    with place.start(*options, "train.py", env=variables(tmp_path / "run")) as launcher:
        place.ready(2)
        (tmp_path / "notice").touch()
        ended = place.wait(launcher)
    assert ended.status == PREEMPTED, (ended.stderr, place.log(0))
    steps = {place.text(f"stopped.{rank}") for rank in range(2)}
    assert steps == {str(event["step"]) for event in events(tmp_path / "log", "stop_step")}
    assert [place.text(f"worker.alive.{rank}") for rank in range(2)] == ["True", "True"]
    assert [name for name in place.names() if ".got." in name] == []
