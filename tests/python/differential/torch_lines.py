"""Command lines for torchrun, with what a launcher of the same words is known to do otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from effort import FULL

# The script of the workers. Commands to it among its arguments: `do:exit:RANK:CODE`, `do:kill:RANK:SIGNAL`,
# `do:record:RANK:TEXT`, `do:signal:RANK:SIGNAL` (to the launcher), each with `:ATTEMPT` behind it (0), by
# which a job ends once all workers have written their variables; and `do:bytes`.
JOB = r"""
import contextlib, json, os, signal, sys, time, traceback

signal.alarm(140)
env = dict(os.environ)
rank, size, attempt = (int(env[name]) for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"))
words = [arg.split(":")[1:] for arg in sys.argv[1:] if arg.startswith("do:")]
ends = [word for word in words if word[0] != "bytes" and int((word + ["0"])[3]) == attempt]

def say(descriptor, text):
    os.write(descriptor, text.encode("utf-8", "surrogateescape"))

for descriptor, name in ((1, "out"), (2, "err")):
    say(descriptor, f"say {name} {rank}.{attempt} apple\n")
    say(descriptor, f"say {name} {rank}.{attempt} pear, plum\n")
    if ["bytes"] in words:
        say(descriptor, f"say {name} {rank}.{attempt} \udcff\udcfe\n")

def open_files():
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            os.fstat(int(name))
            yield int(name)

about = {
    "env": env, "argv": sys.argv, "command": sys.orig_argv, "cwd": os.getcwd(), "main": __name__,
    "leads": [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()], "files": sorted(open_files()),
    "package": __package__ or "",
    **{f"descriptor {number}": os.path.realpath(f"/proc/self/fd/{number}") for number in range(3)},
}
with open(f"part.{attempt}.{rank}", "w") as file:
    json.dump(about, file)
os.rename(f"part.{attempt}.{rank}", f"seen.{attempt}.{rank}.json")

for what, who, how, *_ in ends:
    if int(who) != rank:
        continue
    awaited = ["launcher.pid", *(f"seen.{attempt}.{other}.json" for other in range(size))]
    while not all(map(os.path.exists, awaited)):
        time.sleep(0.005)
    if what == "exit":
        sys.exit(int(how))
    if what == "kill":
        os.kill(os.getpid(), signal.Signals[how])
    if what == "signal":
        with open("launcher.pid") as file:
            os.kill(int(file.read()), signal.Signals[how])
    if what == "record":
        # As torch's @record writes it.
        try:
            raise ValueError(how)
        except ValueError:
            about = {"py_callstack": traceback.format_exc(), "timestamp": str(int(time.time()))}
            if env["TORCHELASTIC_ERROR_FILE"]:
                with open(env["TORCHELASTIC_ERROR_FILE"], "w") as file:
                    json.dump({"message": {"message": f"ValueError: {how}", "extraInfo": about}}, file)
            sys.exit(1)
if ends:
    signal.pause()
"""


@dataclass(frozen=True)
class Line:
    """One command line."""

    words: str
    env: Mapping[str, str] = field(default_factory=dict)
    # Our exit status where both are not 0; torchrun's is 1 for all but what argparse refuses.
    status: int = 0
    # The text of both, or of torchrun and of rlaunch.
    says: str | tuple[str, str] = ""
    # The names of differences that it shows, beside those that most lines show.
    differs: tuple[str, ...] = ()
    # Whether torchrun has to be run from its beginning: it reads something while it is imported.
    plain: bool = False


TWO = "--nproc-per-node 2"
LOGS = f"{TWO} --log-dir logs"
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


def fails(words: str, says: str | tuple[str, str], status: int = 2, **more: object) -> Line:
    """A line that starts no worker."""
    return Line(words, status=status, says=says, **more)  # type: ignore[arg-type]


LINES: dict[str, Line] = {
    # --- what runs
    "nothing": Line("job.py"),
    "arguments": Line("job.py a --b 'c d' ''"),
    "two workers": Line(f"{TWO} job.py"),
    "underscores": Line("--nproc_per_node=2 job.py"),
    "three": Line("--nproc-per-node=3 job.py"),
    "cpu": Line("--nproc-per-node cpu job.py"),
    "auto": Line("--nproc-per-node auto job.py", NO_GPU),
    "PET_NPROC_PER_NODE": Line("job.py", {"PET_NPROC_PER_NODE": "2"}),
    "the option beats the variable": Line("--nproc-per-node 1 job.py", {"PET_NPROC_PER_NODE": "2"}),
    "no gpu": fails(
        "--nproc-per-node gpu job.py", ("Cuda is not available.", "--nproc-per-node"), 66, env=NO_GPU
    ),
    "no xpu": fails("--nproc-per-node xpu job.py", ("Xpu is not available.", "--nproc-per-node"), 66),
    "a number with blanks": Line("--nproc-per-node ' +2 ' job.py"),
    "no number of workers": fails("--nproc-per-node two job.py", "Unsupported nproc_per_node value: two"),
    "no workers": fails("--nproc-per-node 0 job.py", ("AssertionError", "is not a number of ranks")),
    "fewer": fails("--nproc-per-node -1 job.py", ("AssertionError", "is not a number of ranks")),
    "module": Line("-m job a"),
    "--module": Line("--module job a"),
    "a package": Line("-m pkg a"),
    "PET_MODULE": Line("job", {"PET_MODULE": "1"}),
    "PET_MODULE 0": Line("job.py", {"PET_MODULE": "0"}),
    "PET_MODULE true": Line("job", {"PET_MODULE": "true"}, differs=("words for flags",)),
    "PET_MODULE maybe": fails(
        "job", ("invalid literal for int()", "PET_MODULE"), env={"PET_MODULE": "maybe"}
    ),
    "no python": Line("--no-python {python} job.py a"),
    "no_python": Line("--no_python ./job.sh a"),
    "a program on PATH": Line("--no-python job.sh a", {"PATH": "{here}:{PATH}"}),
    "PET_NO_PYTHON": Line("{python} -u job.py", {"PET_NO_PYTHON": "1"}),
    "no such program": fails("--no-python nowhere", ("FileNotFoundError", "nowhere"), 66),
    "module without python": fails("--no-python -m job", "Don't use both the '--no-python' flag"),
    "another python": Line("job.py a", {"PYTHON_EXEC": "{here}/py"}),
    "local rank in arguments": Line(f"{TWO} job.py --x=${{local_rank}} $local_rank $$local_rank ${{other}}"),
    "local rank in the script's name": Line(f"{TWO} job${{local_rank}}.py"),
    "run path, fork": Line("--run-path --start-method fork {here}/job.py a", differs=("run path",)),
    "run_path, spawn": Line("--run_path --start_method=spawn {here}/job.py a", differs=("run path",)),
    "PET_RUN_PATH, forkserver": Line(
        "{here}/job.py a", {"PET_RUN_PATH": "1", "PET_START_METHOD": "forkserver"}, differs=("run path",)
    ),
    "run path beats no python": Line(
        "--run-path --start-method fork --no-python {here}/job.py", differs=("run path",)
    ),
    "a start method that is none": fails("--start-method no job.py", "invalid choice: 'no'"),
    "PET_START_METHOD that is none": Line("job.py", {"PET_START_METHOD": "no"}),
    "the same, for run path": fails(
        "--run-path {here}/job.py", ("'no'", "PET_START_METHOD"), env={"PET_START_METHOD": "no"}
    ),
    "no such script": fails("nowhere.py", ("can't open file", "nowhere.py"), 66),
    "a script in a folder": Line("sub/job.py"),
    # --- words
    "an abbreviation": Line("--nno 1 --standa job.py"),
    "abbreviated with =": Line("--redirect=3 --log-d=logs job.py"),
    "an ambiguous one of one meaning": Line("--nproc=2 job.py", differs=("abbreviations",)),
    "an ambiguous one of several": fails("--rdzv=2 job.py", "ambiguous option: --rdzv"),
    "letters together": Line("-mt3 job"),
    "a letter with its value": Line("-r3 --log-dir logs job.py"),
    "options of the script": Line("--role a job.py --role b --nproc-per-node 7 -m --help"),
    "a separator behind the script": Line("job.py -- -x"),
    "two of them": Line("job.py -- -- -x"),
    "a separator later": Line("job.py a -- -x"),
    "a separator before the script": Line("-- job.py -x"),
    "the last one counts": Line("--role a --role b job.py"),
    "an unknown option": fails("--nope job.py", "--nope"),
    "an unknown letter": fails("-x job.py", "-x"),
    "use-env": fails("--use-env job.py", "--use-env"),
    "no script": fails("--nproc-per-node 2", "the following arguments are required: training_script"),
    "no words": fails("", "the following arguments are required: training_script"),
    "a value is missing": fails("--role", "expected one argument"),
    "a flag with a value": fails("--standalone=1 job.py", "--standalone"),
    "help": Line("--help"),
    "completion": Line("--print-completion bash", differs=("completion",)),
    "print_completion": Line("--print_completion=zsh", differs=("completion",)),
    "completion of no shell": fails("--print-completion no", "invalid choice: 'no'"),
    # --- rendezvous
    "standalone": Line("--standalone job.py"),
    "PET_STANDALONE": Line("job.py", {"PET_STANDALONE": "1"}),
    "standalone beats all": Line("--standalone --rdzv-id me --rdzv-backend etcd --rdzv-endpoint no:1 job.py"),
    "one node": Line("--nnodes 1 job.py"),
    "one to one": Line("--nnodes=1:1 job.py"),
    "PET_NNODES": Line("job.py", {"PET_NNODES": "1:1"}),
    "three numbers of nodes": fails("--nnodes 1:2:3 job.py", 'nnodes=1:2:3 is not in "MIN:MAX" format'),
    "no number of nodes": fails("--nnodes x job.py", ("invalid literal for int()", "--nnodes x")),
    "no nodes": fails(
        "--nnodes 0 job.py", "min_nodes must be > 0 and <= max_nodes, got min_nodes=0, max_nodes=0"
    ),
    "more than the most": fails("--nnodes 2:1 job.py", "min_nodes must be > 0 and <= max_nodes"),
    "an id is lost": Line("--rdzv-id me job.py"),
    "a port": Line("--master-port {port} job.py"),
    "an id is kept": Line("--master_port={port} --rdzv_id=me --log-dir logs -r 3 job.py"),
    "PET_MASTER_PORT": Line("job.py", {"PET_MASTER_PORT": "{port}", "PET_RDZV_ID": "me"}),
    "address and port": Line("--master-addr localhost --master-port {port} job.py"),
    "PET_MASTER_ADDR": Line("--master-port {port} job.py", {"PET_MASTER_ADDR": "localhost"}),
    "an address alone": Line("--master_addr 127.0.0.1 job.py"),
    "an endpoint": Line("--rdzv-endpoint 127.0.0.1:{port} job.py"),
    "PET_RDZV_ENDPOINT": Line("job.py", {"PET_RDZV_ENDPOINT": "localhost:{port}"}),
    "an endpoint beats a port": Line("--rdzv_endpoint=127.0.0.1:{port} --master-port 1 job.py"),
    "an endpoint without a port": fails(
        "--rdzv-endpoint 127.0.0.1 job.py",
        ("port is missing in endpoint: 127.0.0.1", "Port is absent in endpoint"),
    ),
    "an id that is no name": fails(
        "--rdzv-id a/b --master-port {port} job.py", ("FileNotFoundError", "cannot be part of a file name")
    ),
    "an endpoint that is none": fails("--rdzv-endpoint 127.0.0.1:x job.py", "127.0.0.1:x"),
    "c10d": Line("--rdzv-backend c10d --rdzv-endpoint localhost:0 --rdzv-id me job.py"),
    "c10d alone": Line("--rdzv_backend c10d --rdzv-endpoint localhost:{port} job.py"),
    "PET_RDZV_BACKEND": Line("--rdzv-endpoint localhost:0 job.py", {"PET_RDZV_BACKEND": "c10d"}),
    "a backend that is none": fails("--rdzv-backend no job.py", ("'no'", "'no' is not registered")),
    "settings": Line(
        "--rdzv-backend c10d --rdzv-endpoint localhost:0 --rdzv-conf a=b,join_timeout=60 job.py"
    ),
    "PET_RDZV_CONF": Line("--master-port {port} job.py", {"PET_RDZV_CONF": " timeout = 60 , x=y"}),
    "a setting without a value": fails("--rdzv-conf a job.py", "'a' must have a value specified"),
    "a setting without a name": fails("--rdzv_conf =a job.py", "must be in format <key1>=<value1>"),
    "a setting that is no number": fails(
        "--rdzv-backend c10d --rdzv-endpoint localhost:0 --rdzv-conf join_timeout=x job.py", "join_timeout"
    ),
    "a port that is none": fails("--master-port abc job.py", "invalid int value: 'abc'"),
    "PET_MASTER_PORT that is none": fails(
        "job.py", "invalid int value: 'abc'", env={"PET_MASTER_PORT": "abc"}
    ),
    "a port too high": fails("--master-port 65536 job.py", "65536"),
    "node 0": Line("--node-rank 0 job.py"),
    "PET_NODE_RANK": Line("job.py", {"PET_NODE_RANK": "0"}),
    "node 1 of one": Line("--node_rank 1 job.py"),
    "a node's number that is none": fails("--node-rank x job.py", "invalid int value: 'x'"),
    "own address": Line("--local-addr 127.0.0.1 job.py"),
    "local_addr": Line("--local_addr=localhost job.py"),
    "PET_LOCAL_ADDR": Line(
        "--rdzv-backend c10d --rdzv-endpoint localhost:0 job.py", {"PET_LOCAL_ADDR": "127.0.0.1"}
    ),
    # --- variables of workers
    "role": Line(f"--role trainer {TWO} -t 3 job.py"),
    "a role without a name": Line("--role= -t 3 job.py"),
    "PET_ROLE": Line("-t 1 job.py", {"PET_ROLE": "trainer"}),
    "virtual local rank": Line(f"--virtual-local-rank {TWO} job.py"),
    "of a list": Line(f"--virtual_local_rank {TWO} job.py", {"CUDA_VISIBLE_DEVICES": "5, 7,9"}),
    "PET_VIRTUAL_LOCAL_RANK": Line(
        f"{TWO} job.py", {"PET_VIRTUAL_LOCAL_RANK": "1", "HIP_VISIBLE_DEVICES": "3,4"}
    ),
    "of a list too short": fails(
        f"--virtual-local-rank {TWO} job.py",
        ("ValueError", "CUDA_VISIBLE_DEVICES"),
        env={"CUDA_VISIBLE_DEVICES": "5"},
    ),
    "a list without it": Line(f"{TWO} job.py", {"CUDA_VISIBLE_DEVICES": "5,7"}),
    "threads": Line(f"{TWO} job.py", {"OMP_NUM_THREADS": "3"}),
    "threads of one": Line("job.py", {"OMP_NUM_THREADS": "3"}),
    "async error handling": Line("job.py", {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}),
    "what it inherits": Line(
        "job.py", {"RANK": "7", "WORLD_SIZE": "9", "LOCAL_RANK": "3", "MASTER_ADDR": "far"}
    ),
    "signals": Line("--signals-to-handle SIGTERM,SIGUSR1 job.py"),
    "PET_SIGNALS_TO_HANDLE": Line("job.py", {"PET_SIGNALS_TO_HANDLE": "SIGTERM"}),
    "a signal that is none": Line("--signals_to_handle SIGTERM,SIGNOT job.py", differs=("inductor",)),
    "no signals": Line("--signals-to-handle= job.py", differs=("inductor",)),
    "binding without a device": Line("--numa-binding node job.py", NO_GPU, differs=("binding",)),
    "binding that is none": fails("--numa_binding no job.py", "invalid choice: 'no'"),
    "monitor interval": Line("--monitor-interval 0.05 job.py"),
    "PET_MONITOR_INTERVAL": Line("job.py", {"PET_MONITOR_INTERVAL": "0.05"}),
    "no interval": fails("--monitor_interval x job.py", "invalid float value: 'x'"),
    "interval 0": fails(
        "--monitor-interval 0 job.py", ("AssertionError", "is not a positive number of seconds")
    ),
    "LOGLEVEL": Line(f"{TWO} job.py", {"LOGLEVEL": "INFO"}, plain=True),
    "LOGLEVEL that is none": fails("job.py", "Unknown level: 'LOUD'", env={"LOGLEVEL": "LOUD"}, plain=True),
    # --- logs
    "a log folder": Line(f"{LOGS} job.py"),
    "log_dir": Line(f"{TWO} --log_dir=a/b/logs -r 3 job.py"),
    "PET_LOG_DIR": Line("-r 1 job.py", {"PET_LOG_DIR": "{here}/logs"}),
    "no log folder": Line(f"{TWO} --log-dir /dev/null -t 3 job.py"),
    "no log folder and a filter": Line(
        f"{TWO} --log-dir /dev/null --local-ranks-filter 1 job.py", differs=("filter without logs",)
    ),
    "no log folder and lines of it": Line(
        f"{TWO} --log-dir /dev/null --duplicate-stdout-filters apple -t 3 job.py",
        differs=("lines without logs",),
    ),
    "an empty name of it": Line("--log-dir= -r 3 job.py"),
    "a file is there": fails("--log-dir job.py job.py", "job.py is a file", 66),
    "redirect stdout": Line(f"{LOGS} -r 1 job.py"),
    "redirect stderr": Line(f"{LOGS} --redirects 2 job.py"),
    "redirect both": Line(f"{LOGS} --redirects=3 job.py"),
    "redirect some": Line(f"{LOGS} -r 0:3,1:2 job.py"),
    "redirect one twice": Line(f"{LOGS} -r 0:1,0:2 job.py"),
    "redirect one": Line(f"{LOGS} -r 1:1 job.py"),
    "PET_REDIRECTS": Line(f"{LOGS} job.py", {"PET_REDIRECTS": "3"}),
    "the letter has no variable": Line(f"{LOGS} job.py", {"PET_R": "3"}),
    "tee stdout": Line(f"{LOGS} -t 1 job.py"),
    "tee both": Line(f"{LOGS} --tee 3 job.py"),
    "tee some": Line(f"{LOGS} -t 0:1,1:3 job.py"),
    "tee and redirect": Line(f"{LOGS} -t 1 -r 3 job.py"),
    "PET_TEE": Line(f"{LOGS} job.py", {"PET_TEE": "3"}),
    "tee of a folder that goes": Line(f"{TWO} -t 3 job.py"),
    "streams that are none": fails("-r 4 job.py", "4 does not match"),
    "streams without a value": fails("--redirects= job.py", "does not match"),
    "a map that is none": fails("-t 0:1,1 job.py", "0:1,1 does not match"),
    "a map for rank 10": Line(f"{LOGS} -r 0:3,10:3 job.py", differs=("maps beyond 9",)),
    "bytes that are no text": Line(f"{LOGS} -r 3 job.py do:bytes"),
    "a template": Line(
        f"{LOGS} -t 3 --log-line-prefix-template '<${{role_name}}/${{local_rank}}/${{rank}}/$x>' job.py"
    ),
    "log_line_prefix_template": Line("-t 3 --log_line_prefix_template=${hostname}$$ job.py"),
    "PET_LOG_LINE_PREFIX_TEMPLATE": Line("-t 1 job.py", {"PET_LOG_LINE_PREFIX_TEMPLATE": "p${rank} "}),
    "its other variable": Line("-t 1 job.py", {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "t${rank} "}),
    "a filter": Line(f"{LOGS} -t 3 --local-ranks-filter 1 job.py"),
    "of plain output": Line(f"{TWO} --local_ranks_filter=0 job.py"),
    "of redirected output": Line(f"{LOGS} -r 1 --local-ranks-filter 0,1 job.py"),
    "a filter with blanks": Line(f"{TWO} --local-ranks-filter ' 0 , 1' job.py"),
    "a filter of no rank": Line(f"{TWO} -t 1 --local-ranks-filter=-1 job.py"),
    "PET_LOCAL_RANKS_FILTER": Line(f"{TWO} job.py", {"PET_LOCAL_RANKS_FILTER": "1"}),
    "a filter that is none": fails(
        "--local-ranks-filter a job.py", "--local_ranks_filter must be a comma-separated list of integers"
    ),
    "lines of stdout": Line(f"{LOGS} -t 3 --duplicate-stdout-filters apple job.py"),
    "lines of both": Line(
        f"{LOGS} -t 3 --duplicate_stdout_filters 'pear,, plum,nothing' --duplicate_stderr_filters=0.0 job.py"
    ),
    "lines of stderr": Line(f"{LOGS} -t 0:3 --duplicate-stderr-filters 'apple,pear' job.py"),
    "PET_DUPLICATE_STDOUT_FILTERS": Line(f"{LOGS} -t 3 job.py", {"PET_DUPLICATE_STDOUT_FILTERS": "pear"}),
    "PET_DUPLICATE_STDERR_FILTERS": Line(f"{LOGS} -t 2 job.py", {"PET_DUPLICATE_STDERR_FILTERS": "apple"}),
    "lines of no tee": Line(f"{LOGS} -r 3 --duplicate-stdout-filters apple job.py"),
    "bytes on the console": Line(f"{LOGS} -t 3 job.py do:bytes", differs=("bytes",)),
    "logs specs": fails("--logs-specs no job.py", "torchrun.logs_specs[no]"),
    "logs_specs": fails("--logs_specs=no job.py", "torchrun.logs_specs[no]"),
    "events": Line(f"{TWO} --event-log-handler console job.py"),
    "event_log_handler": Line("--event_log_handler null job.py"),
    "PET_EVENT_LOG_HANDLER": Line("job.py", {"PET_EVENT_LOG_HANDLER": "console"}),
    "a handler that is none": fails(
        "--event-log-handler no job.py", ("KeyError: 'no'", "--event-log-handler no")
    ),
    # --- ends
    "a worker fails": Line(f"{LOGS} job.py do:exit:1:3", status=3),
    "and its logs stay": Line(f"{TWO} -t 3 job.py do:exit:0:9", status=9),
    "a worker is killed": Line(f"{LOGS} job.py do:kill:0:SIGKILL", status=137),
    "by SIGSEGV": Line("job.py do:kill:0:SIGSEGV", status=139),
    "a worker says why": Line(f"{LOGS} job.py do:record:1:boom", status=1),
    "without a file": Line(f"{TWO} --log-dir /dev/null job.py do:record:0:boom", status=1),
    "a restart": Line(f"{LOGS} --max-restarts 1 -r 3 job.py do:exit:1:3"),
    "restarts": Line(f"{LOGS} --max_restarts=2 -t 1 job.py do:exit:1:3 do:kill:0:SIGTERM:1"),
    "PET_MAX_RESTARTS": Line("job.py do:exit:0:1", {"PET_MAX_RESTARTS": "1"}),
    "restarts in vain": Line(f"{LOGS} --max-restarts 1 job.py do:exit:0:5 do:exit:1:6:1", status=6),
    "restarts that are no number": fails("--max-restarts x job.py", "invalid int value: 'x'"),
    "fewer restarts than none": fails("--max-restarts -1 job.py", "max_restarts must be >= 0"),
    "events of a failure": Line(
        f"{TWO} --event-log-handler console job.py do:record:1:boom", status=1, differs=("events",)
    ),
    "events of a restart": Line(f"{TWO} --event-log-handler console --max-restarts 1 job.py do:exit:1:3"),
    "time to stop": Line(f"{TWO} --shutdown-timeout 5 job.py do:exit:1:3", status=3),
    "PET_SHUTDOWN_TIMEOUT": Line("job.py", {"PET_SHUTDOWN_TIMEOUT": "5"}),
    "no time": Line(f"{TWO} --shutdown-timeout 0 job.py"),
    "its other one that is none": fails(
        "job.py",
        ("ValueError", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"),
        env={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "x"},
    ),
    "its other one": Line("job.py", {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5"}),
    "no time to stop": fails("--shutdown-timeout -1 job.py", "shutdown_timeout must be non-negative, got -1"),
    "no number of seconds": fails("--shutdown_timeout x job.py", "invalid int value: 'x'"),
    "the launcher is stopped": Line(f"{TWO} job.py do:signal:0:SIGTERM", status=143),
    "by a signal of its own": Line(
        f"{TWO} --signals-to-handle SIGUSR1 job.py do:signal:1:SIGUSR1", status=138
    ),
    "its own error file": Line(
        f"{TWO} job.py do:record:0:boom", {"TORCHELASTIC_ERROR_FILE": "{here}/own.json"}, status=1
    ),
    "of a worker that says nothing": Line(
        "job.py do:exit:0:4",
        {"TORCHELASTIC_ERROR_FILE": "{here}/own.json"},
        status=4,
        differs=("error file of silence",),
    ),
    "of a bad value": fails(
        "--max-restarts -1 job.py",
        "max_restarts must be >= 0",
        env={"TORCHELASTIC_ERROR_FILE": "{here}/own.json"},
        differs=("error file of a refusal",),
    ),
    "of a usage error": fails("--nope job.py", "--nope", env={"TORCHELASTIC_ERROR_FILE": "{here}/own.json"}),
}

# Run from its beginning too, to show that the forked torchrun is torchrun.
ALSO_PLAIN = ("two workers", "a worker says why", "a map that is none") if FULL else ("a worker says why",)
