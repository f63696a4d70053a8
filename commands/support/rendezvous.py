"""The meeting of the processes of one command."""

import argparse

from commands.support import ending
from transformer import distributed
from workdir.included import include


def connect_processes(flags: argparse.Namespace, certain: bool) -> None:
    """Connects this process to the others, unless there are none and it is not `certain` that there are; runs
    the file of --include, and checks that all run the same code.

    Raises:
      UserError: they do not meet, the command is one of a single process, or their code differs.
    """
    place = flags.coordinator, flags.num_processes, flags.process_id, flags.heartbeat_seconds
    distributed.connect(*place, certain=certain, alone=flags.mode if flags.alone else "")
    distributed.watch_for_ends(ending.leave_after)
    if flags.include:
        include(flags.include)
    if distributed.PLACES:
        from workdir.compatibility.consistency import check_code

        check_code(flags.config.partition(":")[0] if flags.config else "", flags.include)
