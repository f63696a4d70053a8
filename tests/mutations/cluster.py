"""Mutations of what several processes need: file -> (tests, {name: (text, replacement)})."""

EDITS = {
    "workdir/compatibility/consistency.py": (
        "tests/workdir/test_consistency.py",
        {
            "packages_not_compared": ("{**_packages(), **_modules()", "{**_modules()"),
            "modules_not_compared": ("**_modules(), **_programs(files)}", "**_programs(files)}"),
            "programs_not_compared": ("**_modules(), **_programs(files)}", "**_modules()}"),
            "backups_are_compared": ('if "/." not in name}', "if name}"),
            "files_of_their_size_are_equal": (
                "blake2b(content, digest_size=10)",
                'blake2b(b"", digest_size=10)',
            ),
            "nobody_answers": ('else "it is not there")', 'else "")'),
            "folders_stay": ("                path.rmdir()\n", "                pass\n"),
            "files_come_at_once": ("if time.monotonic() > deadline:", "if True:"),
            "libraries_not_compared": ("_check_same(versions() | settings", "_check_same(settings"),
            "settings_not_compared": ("_check_same(versions() | settings", "_check_same(versions()"),
            "places_of_dumps_are_compared": ('if not word.startswith("--xla_dump")', "if word"),
            "installed_ones_are_compared": ("if is_users(path)", "if path.is_file()"),
        },
    ),
    "commands/support/rendezvous.py": (
        "tests/workdir/test_consistency.py",
        {
            "only_training_compares_code": ("    if distributed.PLACES:\n", "    if False:\n"),
            "included_code_is_not_compared": (", flags.include)", ")"),
        },
    ),
    "transformer/coordinators.py": (
        "tests/test_network.py",
        {
            "nobody_tries_the_port": ("if is_here:", "if False:"),
            "everyone_tries_the_port": ("if is_here:", "if True:"),
            "ports_without_limit": ("not 0 < int(port) < 2**16", "not 0 < int(port)"),
            "brackets_stay": ('return host.strip("[]")', "return host"),
            "what_is_given_is_not_kept": (
                'explicit = coordinator or os.environ.get("JAX_COORDINATOR_ADDRESS"), count, number',
                "explicit = None, None, None",
            ),
            "only_the_old_protocol": ("if socket.has_dualstack_ipv6():", "if False:"),
        },
    ),
    "transformer/distributed.py": (
        "tests/test_network.py",
        {
            "refused_is_ended": ("0 if no else place[2]", "place[2]"),
            "unreachable_is_ended": ("    if not port:\n", "    if False:\n"),
            "loopback_of_the_coordinator_stays": (
                "if elsewhere and ipaddress.ip_address(address).is_loopback:",
                "if False:",
            ),
        },
    ),
    "commands/__init__.py": (
        "tests/test_launch.py",
        {"flags_take_addresses": ("if REMOTE.search(value):", "if False:")},
    ),
    "transformer/config.py": (
        "tests/test_launch.py",
        {
            "keys_take_addresses": (
                "return not REMOTE.search(value",
                "return True or not REMOTE.search(value",
            ),
        },
    ),
}
