"""The launch file of Slurm with a real Slurm of two nodes here, where Debian's `slurm-wlm` and `munge`
are installed and the tests run as root."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests import runs

pytestmark = pytest.mark.thorough

CONFIG = """
ClusterName=test
SlurmctldHost={host}
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/controller.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1
NodeName=node1 NodeHostname={host} Port={ports[1]} CPUs=2
NodeName=node2 NodeHostname={host} Port={ports[2]} CPUs=2
PartitionName=main Nodes=ALL Default=YES State=UP
"""

PROGRAM = """#!/bin/bash
start=${{SLURM_RESTART_COUNT:-0}}
case $start in
    0) [ "$SLURM_PROCID" = 1 ] && kill -KILL $$; sleep 300 ;;
    1) exit 143 ;;
    *) found=$({python} -c 'from transformer.coordinators import find_coordinator as find
print(*find(None, None, None))') ;;
esac
echo "start $start: $found"
"""
"""What stands for Python: the second process is killed, then both are stopped, then they find each other."""


@pytest.fixture
def slurm(tmp_path):
    """The environment of a Slurm of two nodes, which ends with the test."""
    if missing := [name for name in ("munged", "slurmctld", "slurmd") if not shutil.which(name)]:
        pytest.skip(f"no {missing[0]} here: apt-get install slurm-wlm munge")
    if os.geteuid():
        pytest.skip("Slurm's daemons of several nodes need root")
    for name in ("state", "node1", "node2"):
        (tmp_path / name).mkdir()
    (tmp_path / "key").write_bytes(os.urandom(256))
    (tmp_path / "key").chmod(0o600)
    ports = [runs.free_port() for _ in range(3)]
    (tmp_path / "slurm.conf").write_text(
        CONFIG.format(host=socket.gethostname(), ports=ports, folder=tmp_path)
    )
    environment = os.environ | {"SLURM_CONF": str(tmp_path / "slurm.conf")}
    munge = [f"--{name}-file={tmp_path}/{name}" for name in ("key", "seed", "log")]
    munge += ["--force", f"--socket={tmp_path}/munge.socket", f"--pid-file={tmp_path}/munge.pid"]
    daemons = [["munged", *munge], ["slurmctld"], ["slurmd", "-N", "node1"], ["slurmd", "-N", "node2"]]
    try:
        for command in daemons:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
            if done.returncode:
                pytest.skip(f"{command[0]} does not start here: {done.stderr[-300:]}")
        yield environment
    finally:
        for name in ("controller", "node1", "node2", "munge"):
            with contextlib.suppress(OSError, ValueError):
                os.kill(int((tmp_path / f"{name}.pid").read_text()), signal.SIGTERM)


def test_what_is_killed_or_stopped_is_queued_again_and_its_processes_find_each_other(slurm, tmp_path):
    (tmp_path / "program").write_text(PROGRAM.format(python=sys.executable))
    (tmp_path / "program").chmod(0o755)
    log = tmp_path / "job.log"
    command = ["sbatch", "--parsable", "--nodes=2", "--exclusive", f"--output={log}", "cluster/slurm.sh"]
    given = slurm | {"PYTHON": str(tmp_path / "program")}
    submitted = subprocess.run(command, cwd=runs.ROOT, env=given, capture_output=True, text=True)
    assert submitted.returncode == 0, submitted.stderr
    job, deadline = submitted.stdout.strip(), time.monotonic() + 240
    shown = ""
    while "JobState=COMPLETED" not in shown and time.monotonic() < deadline:
        time.sleep(1)
        soon = ["scontrol", "update", f"JobId={job}", "StartTime=now"]  # instead of in two minutes
        subprocess.run(soon, env=slurm, capture_output=True)
        asked = ["scontrol", "show", "job", job]
        shown = subprocess.run(asked, env=slurm, capture_output=True, text=True).stdout
    said = log.read_text()
    assert "JobState=COMPLETED" in shown and "Restarts=2" in shown, shown + said
    port = int(job) % 2**12 + 2**16 - 2**12
    assert sorted(line for line in said.splitlines() if line.startswith("start 2")) == [
        f"start 2: node1:{port} 2 {number}" for number in range(2)
    ]
    assert "warning: one processor" not in said
