"""How a function, its arguments and results pass between a program and its ranks."""
