"""What several commands share: flags, texts, help, exit codes."""
