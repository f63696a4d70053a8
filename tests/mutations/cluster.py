"""Mutations of what several processes need: file -> (tests, {name: (text, replacement)})."""

EDITS = {
    "commands/consistency.py": (
        "tests/commands/test_consistency.py",
        {
            "packages_not_compared": ("{**_packages(), **_modules()", "{**_modules()"),
            "modules_not_compared": ("**_modules(), **_programs(files)}", "**_programs(files)}"),
            "programs_not_compared": ("**_modules(), **_programs(files)}", "**_modules()}"),
            "backups_are_compared": ('if "/." not in name}', "if name}"),
            "files_of_their_size_are_equal": (
                "blake2b(content, digest_size=10)",
                'blake2b(b"", digest_size=10)',
            ),
            "libraries_not_compared": ("_check_same(versions() | given", "_check_same(given"),
            "settings_not_compared": ("_check_same(versions() | given", "_check_same(versions()"),
            "places_of_dumps_are_compared": ('if not word.startswith("--xla_dump")', "if word"),
            "installed_ones_are_compared": (
                "if path.is_file() and elsewhere and not",
                "if path.is_file() or not",
            ),
        },
    ),
    "commands/rendezvous.py": (
        "tests/commands/test_consistency.py",
        {
            "only_training_compares_code": ("    if processes.PLACES:\n", "    if False:\n"),
            "included_code_is_not_compared": (", flags.include)", ")"),
        },
    ),
}
