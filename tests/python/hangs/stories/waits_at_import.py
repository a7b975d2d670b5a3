"""A module whose top level waits for a server that never answers. Imported by import_hang.py."""

import socket

with socket.create_server(("127.0.0.1", 0)) as server:
    client = socket.create_connection(server.getsockname())
    greeting = client.recv(16)
