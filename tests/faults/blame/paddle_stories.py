"""Ranks of Paddle, in collectives of gloo."""

from __future__ import annotations

from story import story

# A dataset of which one sample cannot be read.
TRUNCATED = """
    class Data(paddle.io.Dataset):
        def __len__(self): return 8
        def __getitem__(self, index):
            if index == 5:
                raise OSError('img_0005.jpg is truncated')
            return index
"""

story(
    "paddle-exception",
    "an exception while the others are in all_reduce",
    """
    if rank == 1:
        raise ValueError('bad label 11')
    """,
    r"ValueError: bad label 11",
    culprits=1,
    framework="paddle",
)
story(
    "paddle-rank-0",
    "an exception in rank 0, which has the store",
    """
    if rank == 0:
        raise KeyError('optimizer')
    """,
    r"KeyError: 'optimizer'",
    culprits=0,
    framework="paddle",
)
story(
    "paddle-killed",
    "a rank is killed in a collective",
    """
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    """,
    r"SIGKILL",
    culprits=1,
    framework="paddle",
)
story(
    "paddle-segfault",
    "a segmentation fault, which Paddle's own handler prints",
    """
    dist.barrier()
    if rank == 1:
        import ctypes
        ctypes.string_at(0)
    """,
    r"SIGSEGV|Segmentation fault",
    culprits=1,
    framework="paddle",
)
story(
    "paddle-shape",
    "matrices that do not fit, in one rank",
    """
    if rank == 1:
        paddle.matmul(paddle.ones([2, 8]), paddle.ones([9, 4]))
    """,
    r"\(InvalidArgument\)|InvalidArgumentError",
    culprits=1,
    framework="paddle",
)
story(
    "paddle-early-exit",
    "a rank exits with 0 while the others are in a collective",
    """
    dist.barrier()
    if rank == 1:
        os._exit(0)
    """,
    r"rank 1 had exited with 0",
    culprits={0, 1},
    framework="paddle",
)
story(
    "paddle-loader",
    "an exception in a worker of a DataLoader",
    TRUNCATED
    + """
    if rank == 1:
        for batch in paddle.io.DataLoader(Data(), batch_size=2, num_workers=1): pass
    """,
    r"img_0005\.jpg is truncated",
    culprits=1,
    framework="paddle",
)
story(
    "paddle-loader-killed",
    "a worker of a DataLoader is killed",
    """
    class Data(paddle.io.Dataset):
        def __len__(self): return 8
        def __getitem__(self, index):
            if index == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            return index
    if rank == 1:
        for batch in paddle.io.DataLoader(Data(), batch_size=2, num_workers=1): pass
    """,
    r"DataLoader.*(killed by signal|exit(ed)? unexpectedly)|the process that it read from has died",
    culprits=1,
    framework="paddle",
)
story(
    "paddle-loader-exit",
    "a worker of a DataLoader exits",
    """
    class Data(paddle.io.Dataset):
        def __len__(self): return 8
        def __getitem__(self, index):
            if index == 5:
                os._exit(3)
            return index
    if rank == 1:
        for batch in paddle.io.DataLoader(Data(), batch_size=2, num_workers=1): pass
    """,
    r"DataLoader 1 workers exit unexpectedly",
    culprits=1,
    framework="paddle",
)
story(
    "paddle-loader-finally",
    "an exception in a worker of a DataLoader, then the barrier of the clean-up fails",
    TRUNCATED
    + """
    try:
        dist.barrier()
        if rank == 1:
            for batch in paddle.io.DataLoader(Data(), batch_size=2, num_workers=1): pass
        for step in range(100000):
            dist.all_reduce(one)
    finally:
        dist.barrier()
    """,
    # Above the error of the barrier.
    r"(?s)OSError: img_0005\.jpg is truncated.*then.*RuntimeError",
    culprits=1,
    framework="paddle",
)
