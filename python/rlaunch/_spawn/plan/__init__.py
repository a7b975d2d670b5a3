"""What ``rlaunch.spawn`` starts: its options, and the environment of each rank."""
