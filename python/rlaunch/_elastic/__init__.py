"""Functions and programs on the launcher: ``rlaunch.run.run`` and ``rlaunch.torch.elastic_launch``."""
