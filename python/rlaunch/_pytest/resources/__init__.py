"""Resources of the machine that ranks of tests use: devices, ports, shared memory."""
