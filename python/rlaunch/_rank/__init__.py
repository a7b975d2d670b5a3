"""What runs in a rank beside the user's program."""
