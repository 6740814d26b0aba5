"""The command line: options in, files and words out. Everything else is decided elsewhere."""
