"""What a path will do before it is built, and the options that reach what is wanted."""
