"""Code that several commands share: flags, texts, help, exit codes."""
