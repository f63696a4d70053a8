"""How the processes of one command meet."""

import argparse

from commands import ending
from commands.included import include
from transformer import processes


def meet(flags: argparse.Namespace, certain: bool) -> None:
    """Connects this process to the others, unless there are none and it is not `certain` that there are; runs
    the file of --include, and checks that all run the same code.

    Raises:
      UserError: they do not meet, the command is one of a single process, or their code differs.
    """
    place = flags.coordinator, flags.num_processes, flags.process_id, flags.heartbeat_seconds
    processes.meet(*place, certain=certain, alone=flags.mode if flags.alone else "")
    processes.listen(ending.leave_after)
    if flags.include:
        include(flags.include)
    if processes.PLACES:
        from commands.consistency import check_code

        check_code(flags.config.partition(":")[0] if flags.config else "", flags.include)
