"""Child processes of a program: what starts them, signals held meanwhile, cleanup after them."""
