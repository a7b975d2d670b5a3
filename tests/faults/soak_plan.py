"""The plan of one run of the soak, drawn from its seed: ranks, options, signals, their targets and times."""

from __future__ import annotations

import dataclasses
import json
import random
import signal
from dataclasses import dataclass
from signal import Signals

from launchers import Launcher

STOP = {Signals[name] for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGABRT")}
# End each process that does not handle them; the launcher cannot, or does not.
DEADLY = {Signals[name] for name in ("SIGKILL", "SIGSEGV", "SIGALRM")}
# The soak itself continues each process that it has sent one of these.
HOLDING = {signal.SIGSTOP, signal.SIGTSTP}
SENT = sorted(
    STOP
    | DEADLY
    | HOLDING
    | {Signals[name] for name in ("SIGUSR1", "SIGUSR2", "SIGCONT", "SIGPIPE", "SIGWINCH")}
)
# Half of all go where most is decided.
MEMBERS = (
    ["front"] * 4 + ["supervisor"] * 3 + ["rank"] * 4 + ["child"] * 2 + ["front's group", "rank's group"]
)
# No exit status that the launcher has a meaning of its own for.
CODES = (1, 3, 7, 42, 126, 143, 255)
DEATHS = [Signals[name] for name in ("SIGKILL", "SIGSEGV", "SIGABRT", "SIGTERM", "SIGPIPE", "SIGUSR1")]
NOTIFIED = ["", "TERM", "HUP", "TERM,HUP", "WINCH", "ALRM,QUIT"]

# The body of a rank, below `job.HEAD`; its part of the plan comes as JSON. `end.ATTEMPT.RANK` is what it
# means to end with, `start.ATTEMPT.RANK` that it was there.
BODY = """
import json, resource

attempt = int(os.environ.get("RLAUNCH_RANK_KEY", "/0/").split("/")[-2])
mine = json.loads(sys.argv[1])[rank]

def end(how, number):
    tell(f"end.{attempt}", f"{how} {number} {time.monotonic()}")
    if how == "code":
        os._exit(number)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    sleep()

def asked(*_):
    time.sleep(mine["pause"])
    end("code", mine["answer"])

if mine["asked"] == "deaf":
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
elif mine["asked"] == "answers":
    signal.signal(signal.SIGTERM, asked)
tell(f"start.{attempt}")
for kind in mine["leaves"]:
    if os.path.exists(f"left.{rank}"):
        os.unlink(f"left.{rank}")
    leave(kind)
for _ in range(mine["mebibytes"] * 16):
    data = (b"x" * 1023 + b"\\n") * 64
    while data:
        data = data[os.write(1, data):]
if mine["after"] is None:
    sleep()
time.sleep(mine["after"])
how, number = mine["end"] if attempt < mine["fails"] else ["code", 0]
end(how, number)
"""


@dataclass(frozen=True)
class Rank:
    """The behaviour of a rank: when asked to stop, and by itself."""

    asked: str  # obeys (the default action), deaf, or answers: exits with `answer` after `pause` seconds.
    pause: float
    answer: int
    after: float | None  # Seconds until it ends by itself; None: never.
    end: tuple[str, int]  # ("code", 3) or ("signal", 11), and that only in the first `fails` attempts.
    fails: int
    leaves: tuple[str, ...]
    mebibytes: int


@dataclass(frozen=True)
class Shot:
    """A signal: seconds after the start or after the ranks are there, to the `which`-th of these members."""

    at: float
    member: str
    which: int
    number: Signals
    hold: float  # Seconds until it is continued, if it is one of HOLDING.


@dataclass(frozen=True)
class Plan:
    seed: int
    run: int
    ranks: tuple[Rank, ...]
    grace: float
    options: tuple[str, ...]
    notified: frozenset[Signals]
    restarts: int
    from_start: bool  # Whether shots count from the launcher's start, not from when all ranks are there.
    shots: tuple[Shot, ...]
    last: float  # When SIGINT is sent to the front, which nothing keeps from stopping the job.

    def launcher(self, launcher: Launcher) -> Launcher:
        """With the options of this run, where it knows them."""
        if not launcher.ours:
            return launcher
        return dataclasses.replace(
            launcher,
            options=lambda ranks, logs: [*launcher.options(ranks, logs), *self.options],
            grace=self.grace,
        )

    def script(self) -> str:
        return json.dumps([dataclasses.asdict(rank) for rank in self.ranks])


def draw(seed: int, run: int) -> Plan:
    """The plan of one run: it depends on these two numbers alone."""
    chance = random.Random(f"{seed}/{run}")
    grace = chance.choice([0.2, 0.5, 1.0, 1.5, 2.0])
    notified = chance.choice(NOTIFIED) if chance.random() < 0.3 else ""
    restarts = chance.choice([0, 0, 0, 1, 2])
    options = ["--grace_period", str(grace), "--max_restart", str(restarts), "--restart_delay", "0.1"]
    if notified:
        options += ["--forward_signals", notified]
    options += chance.choice([[], ["--console_ranks", "all"], ["--console_ranks", "none"]])
    names = frozenset(Signals[f"SIG{name}"] for name in notified.split(",") if name)
    ranks = tuple(draw_rank(chance) for _ in range(chance.choice([1, 2, 2, 3, 4, 8])))
    shots = sorted(draw_shots(chance), key=lambda shot: shot.at)
    from_start, last = chance.random() < 0.3, chance.uniform(1.0, 2.0)
    if from_start and chance.random() < 0.5:
        # While the launcher itself starts.
        shots = [dataclasses.replace(shot, at=shot.at / 10) for shot in shots]
    return Plan(
        seed=seed,
        run=run,
        ranks=ranks,
        grace=grace,
        options=tuple(options),
        notified=names,
        restarts=restarts,
        from_start=from_start,
        shots=tuple(shots),
        last=last,
    )


def draw_rank(chance: random.Random) -> Rank:
    died = chance.random() < 0.3
    kinds = ("child", "setsid", "daemon")
    return Rank(
        asked=chance.choice(["obeys", "obeys", "deaf", "answers"]),
        pause=chance.choice([0.0, 0.1, 5.0]),
        answer=chance.choice([0, 0, 5]),
        after=chance.uniform(0.0, 1.5) if chance.random() < 0.5 else None,
        end=("signal", chance.choice(DEATHS)) if died else ("code", chance.choice((0, 0, 0, *CODES))),
        fails=chance.choice([1, 1, 2, 9]),
        leaves=tuple(kind for kind in kinds if chance.random() < 0.15),
        mebibytes=chance.choice([0, 0, 0, 0, 1, 4]),
    )


def draw_shots(chance: random.Random) -> list[Shot]:
    """Single signals, the same one twice, and bursts."""
    shots = []
    for _ in range(chance.choice([0, 1, 1, 2, 3, 5])):
        at, member, which = chance.uniform(0.0, 1.2), chance.choice(MEMBERS), chance.randrange(8)
        number = chance.choice(SENT)
        match chance.choice(["once", "once", "twice", "burst", "mixed"]):
            case "once":
                volley = [(0.0, number)]
            case "twice":
                volley = [(0.0, number), (chance.uniform(0.0, 0.3), number)]
            case "burst":
                volley = [(turn * 0.001, number) for turn in range(10)]
            case _:
                volley = [(turn * 0.002, chance.choice(SENT)) for turn in range(5)]
        for later, each in volley:
            shots.append(Shot(at + later, member, which, each, hold=chance.uniform(0.0, 0.6)))
    return shots
