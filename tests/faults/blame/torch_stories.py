"""Ranks of torch, in collectives of gloo: the others of a rank that fails lose their connections to it."""

from __future__ import annotations

from story import story

WORKER = r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) "
# torch may notice the loss of its connection to the worker first.
LOST_WORKER = r"the process that it read from has died"
# A rank that ends its script closes its connections some time before it exits.
STILL_EXITING = r"it lost its connection to a peer \(gloo\); no other rank has printed an error"

story(
    "torch-exception",
    "an exception while the others are in all_reduce",
    """
    if rank == 1:
        raise ValueError('bad label 11')
    """,
    r"ValueError: bad label 11",
    culprits=1,
    ranks=3,
    framework="torch",
)
story(
    "torch-rank-0",
    "an exception in rank 0, which has the store",
    """
    if rank == 0:
        raise KeyError('optimizer')
    """,
    r"KeyError: 'optimizer'",
    culprits=0,
    ranks=3,
    framework="torch",
)
story(
    "torch-destroy",
    "an exception, with destroy_process_group in a finally",
    """
    try:
        if rank == 0:
            raise ValueError('loss is nan')

        for step in range(100000):
            dist.all_reduce(torch.ones(4))

    finally:
        dist.destroy_process_group()
    """,
    r"ValueError: loss is nan",
    culprits=0,
    framework="torch",
    then="",
)
story(
    "torch-slow-exit",
    "an exception, and an atexit that takes long while the others lose their connections",
    """
    if rank == 0:
        import atexit
        atexit.register(sleep)
        try:
            raise ValueError('loss is nan')
        finally:
            dist.destroy_process_group()
    """,
    r"ValueError: loss is nan",
    culprits=0,
    ranks=3,
    framework="torch",
)
story(
    "torch-early-exit",
    "a rank exits with 0 while the others are in a collective",
    """
    dist.barrier()
    if rank == 1:
        os._exit(0)
    """,
    r"rank 1 had exited with 0",
    culprits={0, 1},
    framework="torch",
)
story(
    "torch-uneven",
    "a rank has less data, and ends its script",
    """
    for step in range(5 if rank == 1 else 100000):
        dist.all_reduce(torch.ones(4))
    """,
    r"rank 1 had exited with 0|" + STILL_EXITING,
    culprits={0, 1},
    framework="torch",
    then="",
)
story(
    "torch-killed",
    "a rank is killed in a collective",
    """
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    """,
    r"SIGKILL",
    culprits=1,
    ranks=3,
    framework="torch",
)
story(
    "torch-segfault",
    "a segmentation fault in a collective",
    """
    dist.barrier()
    if rank == 2:
        import ctypes
        ctypes.string_at(0)
    """,
    r"SIGSEGV",
    culprits=2,
    ranks=3,
    framework="torch",
)
story(
    "torch-shape",
    "matrices that do not fit, in one rank",
    """
    model = torch.nn.Linear(8, 4)
    if rank == 1:
        model(torch.ones(2, 9))
    """,
    r"mat1 and mat2 shapes cannot be multiplied",
    culprits=1,
    framework="torch",
)
story(
    "torch-backward",
    "an exception in a backward hook",
    """
    def hook(grad):
        raise FloatingPointError('gradient is inf')
    x = torch.ones(3, requires_grad=True)
    if rank == 1:
        x.register_hook(hook)
        (x * 2).sum().backward()
    """,
    r"FloatingPointError: gradient is inf",
    culprits=1,
    framework="torch",
)
story(
    "torch-memory",
    "more memory than there is",
    """
    if rank == 1:
        torch.empty(1 << 60)
    """,
    r"not enough memory|can't allocate memory|DefaultCPUAllocator",
    culprits=1,
    framework="torch",
)
story(
    "torch-ddp",
    "models that differ between ranks, under DistributedDataParallel",
    """
    layers = [torch.nn.Linear(2, 2) for _ in range(2 + rank)]
    torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    """,
    r"DDP expects same model across all ranks",
    culprits={0, 1},
    framework="torch",
)
story(
    "torch-loader",
    "an exception in a worker of a DataLoader",
    """
    class Data(torch.utils.data.Dataset):
        def __len__(self): return 8
        def __getitem__(self, index):
            if index == 5:
                raise OSError('img_0005.jpg is truncated')
            return index
    if rank == 1:
        for batch in torch.utils.data.DataLoader(Data(), 2, num_workers=1): pass
    """,
    r"OSError: .*DataLoader worker process 0",
    r"img_0005\.jpg is truncated",
    culprits=1,
    framework="torch",
)
story(
    "torch-loader-killed",
    "a worker of a DataLoader: killed",
    """
    class Data(torch.utils.data.Dataset):
        def __len__(self): return 8
        def __getitem__(self, index):
            if index == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            return index
    if rank == 1:
        for batch in torch.utils.data.DataLoader(Data(), 2, num_workers=1): pass
    """,
    WORKER + r"is killed by signal: Killed|" + LOST_WORKER,
    culprits=1,
    framework="torch",
)
story(
    "torch-loader-segfault",
    "a worker of a DataLoader: segfault",
    """
    class Data(torch.utils.data.Dataset):
        def __len__(self): return 8
        def __getitem__(self, index):
            if index == 5:
                os.kill(os.getpid(), signal.SIGSEGV)
            return index
    if rank == 1:
        for batch in torch.utils.data.DataLoader(Data(), 2, num_workers=1): pass
    """,
    WORKER + r"is killed by signal: Segmentation fault|" + LOST_WORKER,
    culprits=1,
    framework="torch",
)
story(
    "torch-loader-exited",
    "a worker of a DataLoader: exited",
    """
    class Data(torch.utils.data.Dataset):
        def __len__(self): return 8
        def __getitem__(self, index):
            if index == 5:
                os._exit(3)
            return index
    if rank == 1:
        for batch in torch.utils.data.DataLoader(Data(), 2, num_workers=1): pass
    """,
    WORKER + r"exited unexpectedly|" + LOST_WORKER,
    culprits=1,
    framework="torch",
)
story(
    "torch-record",
    "a main function under torchelastic's record",
    """
    from torch.distributed.elastic.multiprocessing.errors import record
    @record
    def main():
        if rank == 1:
            raise ValueError('vocabulary is empty')
        for step in range(100000):
            dist.all_reduce(torch.ones(4))

    main()
    """,
    r"ValueError: vocabulary is empty",
    culprits=1,
    framework="torch",
    then="",
)
story(
    "torch-spawned",
    "a process of torch.multiprocessing.spawn inside of a rank",
    """
    import torch.multiprocessing as mp
    def work(index):
        raise LookupError('no tokenizer')
    if rank == 1:
        mp.start_processes(work, nprocs=1, start_method='fork')
    """,
    r"LookupError: no tokenizer",
    culprits=1,
    framework="torch",
)
story(
    "torch-mismatch",
    "a tensor of another size in one rank's collective",
    """
    dist.barrier()
    dist.all_reduce(torch.ones(4 if rank else 4000))
    dist.barrier()
    if rank: os._exit(0)
    """,
    r"op\.preamble\.length <= op\.nbytes|had exited|[Cc]onnection",
    culprits={0, 1},
    framework="torch",
)
story(
    "torch-timeout",
    "an exception and an atexit that takes long; the others wait in a collective until it times out",
    """
    group = dist.new_group(timeout=datetime.timedelta(seconds=2))
    if rank == 1:
        import atexit
        atexit.register(sleep)
        raise ValueError('loss is nan')
    dist.all_reduce(torch.ones(4), group=group)
    """,
    r"ValueError: loss is nan",
    culprits=1,
    ranks=3,
    framework="torch",
    then="",
)
story(
    "torch-hang",
    "a rank hangs, and the others' collective times out",
    """
    group = dist.new_group(timeout=datetime.timedelta(seconds=2))
    if rank == 1:
        sleep()
    dist.all_reduce(torch.ones(4), group=group)
    """,
    r"it waited for a peer in vain",
    r"rank 1 was stopped",
    culprits=0,
    framework="torch",
    then="",
)
story(
    "torch-logged",
    "a rank has logged an error that it handled; another one exits with 0 while it is in a collective",
    """
    if rank == 0:
        try:
            raise KeyError('cache')
        except KeyError:
            traceback.print_exc()
    dist.barrier()
    if rank == 1:
        os._exit(0)
    """,
    r"rank 1 had exited with 0 before",
    culprits={0, 2},
    ranks=3,
    framework="torch",
    never=(r"KeyError: 'cache'\n +at", r"it had failed"),
)
story(
    "torch-own-hook",
    "an exception in a rank whose own hook reports it, and an atexit that takes long",
    """
    def report(kind, value, trace):
        sys.__excepthook__(kind, value, trace)
        print('notified the team\\n' * 100, file=sys.stderr)
    sys.excepthook = report
    dist.barrier()
    if rank == 1:
        import atexit
        atexit.register(time.sleep, 5)
        atexit.register(dist.destroy_process_group)
        raise ValueError('loss is nan')
    """,
    r"ValueError: loss is nan",
    culprits=1,
    framework="torch",
)
