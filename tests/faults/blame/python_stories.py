"""Ranks that end by an exception or an exit of their own, in Python alone. The others wait, as in a
collective.
"""

from __future__ import annotations

from story import story

story(
    "exception",
    "an exception in a function",
    """
    def load():
        raise ValueError('loss is nan')
    if rank == 1:
        load()
    """,
    r"ValueError: loss is nan",
    r"in load",
    culprits=1,
)
story(
    "no-message",
    "an assertion without a message",
    """
    if rank == 1:
        assert size == 0
    """,
    r"AssertionError",
    r"assert size == 0",
    culprits=1,
)
story(
    "lines",
    "an exception with a message of several lines",
    r"""
    class BadBatch(Exception): pass
    if rank == 0:
        raise BadBatch('batch 7 is bad:\n  shape (3, 4)\n  wanted (4, 4)')
    """,
    r"BadBatch: batch 7 is bad:",
    r"wanted \(4, 4\)",
    culprits=0,
)
story(
    "caused-by",
    "an exception raised from another one",
    """
    if rank == 1:
        try:
            json.loads('{')
        except ValueError as error:
            raise RuntimeError('config.json cannot be read') from error
    """,
    r"RuntimeError: config\.json cannot be read",
    r"JSONDecodeError",
    culprits=1,
)
story(
    "group",
    "a group of exceptions",
    """
    if rank == 1:
        raise ExceptionGroup('2 shards failed', [OSError('shard 3'), ValueError('shard 5')])
    """,
    r"ExceptionGroup: 2 shards failed",
    r"shard 5",
    culprits=1,
)
story(
    "recursion",
    "endless recursion",
    """
    def walk(node):
        return walk(node)
    if rank == 1:
        walk(0)
    """,
    r"RecursionError: maximum recursion depth exceeded",
    culprits=1,
)
story(
    "missing-file",
    "a checkpoint that one rank does not find",
    """
    if rank == 1:
        open('/nowhere/step-900.pt', 'rb')
    """,
    r"FileNotFoundError",
    r"/nowhere/step-900\.pt",
    culprits=1,
)
story(
    "import-of-one",
    "a module that one rank does not find",
    """
    if rank == 1:
        import flash_attention_9
    """,
    r"ModuleNotFoundError: No module named 'flash_attention_9'",
    culprits=1,
)
story(
    "import-of-all",
    "a module that no rank finds",
    """
    import flash_attention_9
    """,
    r"ModuleNotFoundError: No module named 'flash_attention_9'",
    culprits=range(4),
    ranks=4,
    then="",
)
story(
    "syntax",
    "a script with a syntax error",
    """
    for step in range(3)
        pass
    """,
    r"SyntaxError",
    r"for step in range\(3\)",
    culprits=range(4),
    ranks=4,
    then="",
)
story(
    "usage",
    "arguments that argparse refuses",
    """
    import argparse
    parser = argparse.ArgumentParser()
    parser.add_argument('--lr', required=True)
    parser.parse_args([])
    """,
    r"the following arguments are required: --lr",
    culprits=range(4),
    ranks=4,
    then="",
)
story(
    "exit-message",
    "sys.exit with a message",
    """
    if rank == 1:
        sys.exit('train.yaml: lr is missing')
    """,
    r"train\.yaml: lr is missing",
    culprits=1,
)
story(
    "exit-code",
    "an exit status of its own, after a line of output",
    """
    if rank == 1:
        print('no data for this rank', file=sys.stderr)
        sys.exit(7)
    """,
    r"\b7\b",
    r"no data for this rank",
    culprits=1,
)
story(
    "exit-at-once",
    "os._exit without a word",
    """
    if rank == 1:
        os._exit(9)
    """,
    r"\b9\b",
    culprits=1,
)
story(
    "thread",
    "an exception in a thread, whose hook ends the process",
    """
    def die(args):
        sys.__excepthook__(args.exc_type, args.exc_value, args.exc_traceback)
        sys.stderr.flush()
        os._exit(1)
    threading.excepthook = die
    def prefetch():
        raise OSError('bucket gone')
    if rank == 1:
        threading.Thread(target=prefetch).start()
    """,
    r"OSError: bucket gone",
    r"in prefetch",
    culprits=1,
)
story(
    "subprocess",
    "a command that a rank runs fails",
    """
    if rank == 1:
        subprocess.run(['sh', '-c', 'echo no space for shards >&2; exit 28'], check=True)
    """,
    r"CalledProcessError",
    r"status 28",
    r"no space for shards",
    culprits=1,
)
story(
    "handled-before",
    "a rank logs errors that it handles; another one is killed",
    """
    if rank == 0:
        for step in range(5):
            try:
                raise KeyError(step)
            except KeyError:
                traceback.print_exc()
        tell('logged')
        sleep()
    await_file('logged.0')
    os.kill(os.getpid(), signal.SIGKILL)
    """,
    r"SIGKILL",
    culprits=1,
    then="",
    never=(r"KeyError",),
)
story(
    "handled-then-failed",
    "errors that a rank handled come before the one that ends it",
    """
    if rank == 1:
        try:
            raise KeyError('cache')
        except KeyError:
            traceback.print_exc()
        for step in range(40):
            print('step', step, file=sys.stderr)
        raise ValueError('step 40: loss is nan')
    """,
    r"ValueError: step 40: loss is nan",
    culprits=1,
)
story(
    "own-connection",
    "a rank loses a connection of its own, to a server of files",
    """
    if rank == 1:
        raise ConnectionResetError(104, 'Connection reset by peer', 's3.example')
    """,
    r"ConnectionResetError",
    r"Connection reset by peer",
    culprits=1,
)
story(
    "answers-the-stop",
    "a rank fails; another one answers the stop with a traceback",
    """
    def stop(*_):
        raise KeyboardInterrupt('stopped in the midst of step 3')
    if rank == 0:
        signal.signal(signal.SIGTERM, stop)
        tell('runs')
        sleep()
    await_file('runs.0')
    raise ValueError('bad shard 5')
    """,
    r"ValueError: bad shard 5",
    culprits=1,
    then="",
)
story(
    "log-noise",
    "lines of a logger after the traceback",
    """
    if rank == 1:
        try:
            raise ValueError('bad label 11')
        except ValueError:
            traceback.print_exc()
            print('INFO:run: uploading logs', file=sys.stderr)
            print('INFO:run: bye', file=sys.stderr)
            sys.exit(1)
    """,
    r"ValueError: bad label 11",
    culprits=1,
)
story(
    "nested-spawn",
    "a process that a rank starts by multiprocessing fails, and the rank with it",
    """
    import multiprocessing as mp
    def work():
        raise LookupError('no vocabulary')
    if rank == 1:
        process = mp.get_context('fork').Process(target=work)
        process.start()
        process.join()
        sys.exit(process.exitcode)
    """,
    r"LookupError: no vocabulary",
    culprits=1,
)
story(
    "four-alike",
    "all ranks raise the same",
    """
    raise RuntimeError('CUDA driver version is insufficient for CUDA runtime version')
    """,
    r"RuntimeError: CUDA driver version is insufficient",
    culprits=range(4),
    ranks=4,
    then="",
)
story(
    "logged-then-killed",
    "a rank logs an error that it handled, and a warning; then it is killed",
    """
    if rank == 1:
        try:
            raise KeyError('cache')
        except KeyError:
            traceback.print_exc()
        print('WARNING: no cache', file=sys.stderr)
        os.kill(os.getpid(), signal.SIGKILL)
    """,
    r"SIGKILL",
    culprits=1,
    never=(r"KeyError.*\n.*at .*train",),
)
story(
    "logged-then-exit",
    "a rank logs an error that it handled; much later it ends with a message",
    """
    if rank == 1:
        try:
            raise KeyError('cache')
        except KeyError:
            traceback.print_exc()
        sys.exit('data set 7 is empty')
    """,
    r"did not end by this exception",
    r"last line ?: data set 7 is empty",
    culprits=1,
    never=(r"\n  KeyError: 'cache'\n    data set 7", r"exception : KeyError: 'cache'\n +data set 7"),
)
story(
    "thread-then-exit",
    "an exception ends a thread; later the rank ends with a message of its own",
    """
    if rank == 1:
        metrics = threading.Thread(target=lambda: 1 / 0)
        metrics.start()
        metrics.join()
        print('epoch 1', file=sys.stderr)
        sys.exit('data set 7 is empty')
    """,
    r"this exception ended a thread",
    r"last line ?: data set 7 is empty",
    culprits=1,
    never=(r"\n  ZeroDivisionError: .*\n    epoch 1", r"exception : ZeroDivisionError: .*\n +epoch 1"),
)
story(
    "own-hook",
    "an exception that a hook of the program's own reports",
    """
    def report(kind, value, trace):
        print(f'*** {kind.__name__} in training ***', file=sys.stderr)
    sys.excepthook = report
    if rank == 1:
        raise ValueError('loss is nan')
    """,
    r"ValueError: loss is nan",
    r"in <module>",
    culprits=1,
)
story(
    "pushed-out",
    "an exception, and then so much output that its traceback is far from the end",
    """
    import atexit
    if rank == 1:
        atexit.register(lambda: print('freed\\n' * 200_000, file=sys.stderr))
        raise ValueError('loss is nan')
    """,
    r"ValueError: loss is nan",
    culprits=1,
)
