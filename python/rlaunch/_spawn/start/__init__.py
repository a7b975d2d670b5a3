"""How ranks start: one process class and one Popen for each start method."""
