"""The launch files of clusters, as far as one machine can start them: the schedulers are stubs that start
processes here, with the environment that the real ones give them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import launch
from tests import runs

FOLDER = runs.ROOT / "cluster"

SRUN = """#!/bin/bash
[ "$1" = --kill-on-bad-exit=1 ] && shift
export SLURM_STEP_NODELIST=localhost SLURM_NTASKS=2 SLURM_STEP_NUM_TASKS=2
SLURM_PROCID=1 SLURM_LOCALID=0 "$@" &
SLURM_PROCID=0 SLURM_LOCALID=0 "$@"
first=$?
wait $! || exit $?
exit $first
"""
SSH = """#!/bin/bash
[ "$1" = localhost ] || exit 255
exec bash -c "$2"
"""
RECORD = """#!/bin/bash
printf '%s\\n' "$(basename "$0") $*" >> "$RECORD"
"""


@pytest.fixture
def start(tmp_path):
    """Starts a launch file with these commands before the others; returns its exit code and what it says."""
    (tmp_path / "bin").mkdir()

    def run(name: str, *arguments: str, environment=(), **commands: str) -> tuple[int, str]:
        for command, text in commands.items():
            (tmp_path / "bin" / command).write_text(text)
            (tmp_path / "bin" / command).chmod(0o755)
        done = subprocess.run(
            [FOLDER / name, *arguments],
            cwd=runs.ROOT,
            env=os.environ
            | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1", "PYTHON": sys.executable}
            | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "RECORD": str(tmp_path / "record")}
            | dict(environment),
            capture_output=True,
            text=True,
            timeout=400,
        )
        return done.returncode, done.stdout + done.stderr

    return run


def trained(folder: Path) -> int:
    return json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["step"]


@pytest.mark.thorough
def test_slurm_starts_a_process_on_each_node(start, tmp_path):
    source = runs.write_corpus(tmp_path / "corpus")
    job = {"SLURM_JOB_ID": str(runs.free_port()), "SLURM_GPUS_ON_NODE": "1"}
    code, said = start("slurm.sh", *runs.tiny(source, tmp_path / "run"), srun=SRUN, environment=job)
    assert code == 0 and "2 processes: 0 on " in said and "on 2 x cpu" in said, said
    assert trained(tmp_path / "run") > 0


@pytest.mark.parametrize(
    ("code", "starts", "queued"),
    [
        *((code, 99, True) for code in (129, 138, 140, 143)),  # saved, but not finished
        *((code, 0, True) for code in (1, 134, 137, 139)),
        *((code, 9, True) for code in (1, 137)),
        *((code, 10, False) for code in (1, 137)),
        *((code, 0, False) for code in (0, 2, 130)),
    ],
)
def test_slurm_queues_again_what_has_not_finished(start, tmp_path, code, starts, queued):
    srun = f"#!/bin/bash\necho gpus $JAX_LOCAL_DEVICE_IDS\nexit {code}\n"
    job = {"SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "4", "SLURM_RESTART_COUNT": str(starts)}
    found, said = start("slurm.sh", "--config=configs/lm.py", srun=srun, scontrol=RECORD, environment=job)
    assert found == code and "gpus 0,1,2,3" in said
    record = tmp_path / "record"
    assert (record.read_text() if record.exists() else "") == "scontrol requeue 7\n" * queued


@pytest.mark.parametrize(("given", "said"), [("1", True), ("8", False)])
def test_slurm_says_it_where_a_process_has_one_processor(start, given, said):
    """And passes on how many are asked for, which srun does not take by itself."""
    srun = "#!/bin/bash\necho processors $SRUN_CPUS_PER_TASK\n"
    job = {"SLURM_CPUS_ON_NODE": given, "SLURM_CPUS_PER_TASK": given}
    code, output = start("slurm.sh", "--config=configs/lm.py", srun=srun, environment=job)
    assert code == 0 and f"processors {given}\n" in output
    assert ("warning: one processor on each node; give sbatch --exclusive" in output) == said


@pytest.mark.thorough
def test_ssh_starts_a_process_on_each_host(start, tmp_path):
    source = runs.write_corpus(tmp_path / "corp us")  # quoted twice on the way
    flags = runs.tiny(source, tmp_path / "run")
    chosen = {"PORT": str(runs.free_port())}
    code, said = start("ssh.sh", "localhost", "localhost", "--", *flags, ssh=SSH, environment=chosen)
    assert code == 0 and "2 processes: 0 on " in said, said
    assert trained(tmp_path / "run") > 0


def test_ssh_ends_with_the_code_of_an_error_and_says_how_it_is_used(start):
    assert start("ssh.sh", "nowhere", "--", "--config=configs/lm.py", ssh=SSH)[0] == 255
    code, said = start("ssh.sh", "--config=configs/lm.py")
    assert code == 2 and said.startswith("usage: cluster/ssh.sh HOST")


def test_all_vms_of_a_tpu_get_the_command(start, tmp_path):
    assert start("tpu_vm.sh", "one", "zone", "--config=a b.py", gcloud=RECORD) == (0, "")
    assert (tmp_path / "record").read_text() == (
        "gcloud compute tpus tpu-vm ssh one --zone=zone --worker=all "
        "--command=cd ~/transformer && python launch.py --config=a\\ b.py \n"
    )
    assert start("tpu_vm.sh", "one")[0] == 2


@pytest.mark.parametrize("name", ["jobset_gpu.yaml", "jobset_tpu.yaml"])
def test_jobs_of_kubernetes_start_as_many_processes_as_they_say(name):
    job = yaml.safe_load((FOLDER / name).read_text())
    assert (job["apiVersion"], job["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    (replicated,) = job["spec"]["replicatedJobs"]
    spec = replicated["template"]["spec"]
    assert spec["parallelism"] == spec["completions"] and spec["backoffLimit"] == 0
    (container,) = spec["template"]["spec"]["containers"]
    program, file, *arguments = container["command"]
    assert (program, file) == ("python", "launch.py")
    flags, _ = launch.parse([each.replace("$(JOB_COMPLETION_INDEX)", "1") for each in arguments])
    assert (runs.ROOT / flags.config).is_file()
    if flags.coordinator:
        assert flags.num_processes == spec["completions"] and flags.process_id == 1
        host = f"{job['metadata']['name']}-{replicated['name']}-0-0.{job['metadata']['name']}"
        assert flags.coordinator.startswith(f"{host}:")
    mounted = {each["name"] for each in container["volumeMounts"]}
    assert mounted == {each["name"] for each in spec["template"]["spec"]["volumes"]}
    places = [each["mountPath"] for each in container["volumeMounts"]]
    assert any(flags.workdir.startswith(place) for place in places)


@pytest.mark.thorough
def test_skypilot_starts_a_process_on_each_node(tmp_path):
    job = yaml.safe_load((FOLDER / "skypilot.yaml").read_text())
    assert (runs.ROOT / job["envs"]["FLAGS"].split()[0].removeprefix("--config=")).is_file()
    source = runs.write_corpus(tmp_path / "corpus")
    keys = f"--config.data.source={source} --config.train.steps=2 --config.train.batch_size=4"
    environment = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1", "PYTHON": sys.executable}
    environment |= {"FLAGS": f"--config=configs/lm.py:tiny --workdir={tmp_path / 'run'} {keys}"}
    environment |= {"SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.1", "SKYPILOT_NUM_NODES": str(job["num_nodes"])}
    script = job["run"].replace(":9876", f":{runs.free_port()}")
    processes = [
        subprocess.Popen(
            ["bash", "-c", script],
            cwd=runs.ROOT,
            env=os.environ | environment | {"SKYPILOT_NODE_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(job["num_nodes"])
    ]
    printed = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], printed
    assert trained(tmp_path / "run") == 2


def test_the_image_has_what_it_runs():
    """Each file that the Dockerfile copies is there, and is not left out of what Docker sees."""
    lines = (FOLDER / "Dockerfile").read_text().splitlines()
    ignored = (runs.ROOT / ".dockerignore").read_text().split()
    copied = [line.split()[1] for line in lines if line.startswith("COPY ")]
    assert copied == ["requirements.txt", "."]
    assert not {"transformer", "configs", "experiments", "commands", "workdir", "launch.py"} & {*ignored}
    entry = next(line for line in lines if line.startswith("ENTRYPOINT"))
    program, file = json.loads(entry.removeprefix("ENTRYPOINT "))
    assert program == "python" and (runs.ROOT / file).is_file()
