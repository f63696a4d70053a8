"""What training does only where a config asks for it."""
