"""``rlaunch.launch``: runs the launcher as a child process."""
