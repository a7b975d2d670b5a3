"""Ranks whose reason is not the last thing that they print.

A limit, a thread, an exception that was logged, a call of sys.exit, a module that is in another environment.
"""

from __future__ import annotations

from story import story

story(
    "import-interpreter",
    "a module of the project in another environment: which interpreter ran",
    """
    if rank == 1:
        import my_project
    """,
    r"ModuleNotFoundError: No module named 'my_project'",
    r"/other/venv.*\n? *.*but \S*python\S*",
    culprits=1,
    environment={"VIRTUAL_ENV": "/other/venv"},
)
story(
    "limit-cpu",
    "the hard limit of CPU time (ulimit -t)",
    """
    if rank == 1:
        import resource
        resource.setrlimit(resource.RLIMIT_CPU, (2, 2))
        while True: pass
    """,
    r"SIGKILL",
    r"limit of CPU\s+time",
    culprits=1,
    never=(r"a process sent it",),
)
story(
    "limit-cpu-soft",
    "the soft limit of CPU time (ulimit -S -t)",
    """
    if rank == 1:
        import resource
        resource.setrlimit(resource.RLIMIT_CPU, (1, 60))
        while True: pass
    """,
    r"SIGXCPU",
    r"limit of CPU\s+time",
    culprits=1,
)
story(
    "limit-file",
    "a checkpoint larger than the limit of file size (ulimit -f)",
    """
    if rank == 1:
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
        with open('step-900.pt', 'wb') as file:
            file.write(bytes(1 << 20))
    """,
    r"OSError: \[Errno 27\] File too large",
    r"ulimit -f",
    culprits=1,
)
story(
    "limit-file-signal",
    "the limit of file size ends a rank that does not ignore its signal",
    """
    if rank == 1:
        import resource
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
        with open('step-900.pt', 'wb') as file:
            file.write(bytes(1 << 20))
    """,
    r"SIGXFSZ",
    r"ulimit -f",
    culprits=1,
)
story(
    "thread-far-above",
    "an exception ends a thread; much output follows, then the rank exits",
    """
    def load():
        raise RuntimeError('cannot read shard 3')
    if rank == 1:
        loader = threading.Thread(target=load, name='loader')
        loader.start()
        loader.join()
        for step in range(2000):
            print('waiting for a batch', step, file=sys.stderr)
        sys.exit(5)
    """,
    r"thread\s+loader\s+ended",
    r"RuntimeError:\s+cannot\s+read\s+shard\s+3",
    culprits=1,
)
story(
    "logged-far-above",
    "an exception that the program logged, many lines above its end",
    """
    import logging
    if rank == 1:
        try:
            raise ValueError('bad shard 17')
        except ValueError:
            logging.exception('cannot go on')
        for step in range(400):
            print('cleaning up', step, file=sys.stderr)
        sys.exit(3)
    """,
    r"ValueError:\s+bad\s+shard\s+17\s+\(caught\)",
    r"400\s+lines\s+above",
    culprits=1,
)
story(
    "exit-place",
    "sys.exit with a status and no message: where it was called",
    """
    def check_config():
        sys.exit(3)
    if rank == 1:
        check_config()
    """,
    r"sys\.exit",
    r"train\.py:\d+\s+in\s+check_config",
    culprits=1,
)
story(
    "all-at-once",
    "two ranks fail at one moment, the first exits late: each has its own exit status",
    """
    import atexit
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if rank == 0:
        atexit.register(sleep)
        atexit.register(tell, 'raised')
        raise RuntimeError('bad batch')
    await_file('raised.0')
    raise RuntimeError('bad batch')
    """,
    r"RuntimeError: bad batch",
    culprits=0,
    then="",
    never=(r"exitcode +: -15", r"signal SIGTERM"),
)
story(
    "missing-peer",
    "torch: a world that is larger than the job, so ranks wait for one that does not exist",
    """
    if "MASTER_PORT" not in env:
        env["RANK"], (env["MASTER_ADDR"], env["MASTER_PORT"]) = str(rank), env["PADDLE_MASTER"].split(":")
    import torch.distributed as dist
    tell('imported')
    await_file('imported.0', 'imported.1')
    env["WORLD_SIZE"] = str(size + 1)
    # Rank 0, which has the store, counts who has connected.
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60 if rank else 4))
    """,
    r"rank\s+2,\s+which\s+this\s+job\s+does\s+not\s+have",
    culprits={0, 1},
    then="",
)
