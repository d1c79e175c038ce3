"""The `semel` command. It reads what the other parts know, prints it, and offers the few actions of an operator."""
