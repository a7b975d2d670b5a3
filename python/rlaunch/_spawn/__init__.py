"""``rlaunch.spawn`` and ``rlaunch.torch.start_processes``: functions on ranks."""
