#!/bin/bash
# Trains on several nodes with Slurm, one process per node:
#
#   sbatch --nodes=2 --gpus-per-node=8 --exclusive cluster/slurm.sh --config=configs/papers/llama_8b.py --workdir=/shared/runs/llama
#
# --exclusive gives the job all processors and memory of its nodes; for parts of a node give --cpus-per-gpu=8 instead.
# Without either, Slurm gives a process one processor where the site confines jobs.
#
# Two minutes before the end of its time, or when it is pre-empted, the run saves a checkpoint and the job goes
# back to the queue; there the same command resumes it. So does a job that a signal or an error ended, up to RESTARTS
# (10) starts; not one that a mistake in the command (exit code 2) or Ctrl-C (130) ended.
#SBATCH --job-name=transformer
#SBATCH --ntasks-per-node=1
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=transformer-%j.log
set -uo pipefail

# With Slurm JAX gives each process a single GPU, that of its number on the node. This one has all of them.
if [ -n "${SLURM_GPUS_ON_NODE:-}" ] && [ -z "${JAX_LOCAL_DEVICE_IDS:-}" ]; then
    JAX_LOCAL_DEVICE_IDS=$(seq -s, 0 $((SLURM_GPUS_ON_NODE - 1)))
    export JAX_LOCAL_DEVICE_IDS
fi
# srun does not take the --cpus-per-task of sbatch by itself (since Slurm 22.05).
if [ -n "${SLURM_CPUS_PER_TASK:-}" ]; then
    export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
fi
if [ "${SLURM_CPUS_ON_NODE:-2}" -lt 2 ]; then
    echo "warning: one processor on each node; give sbatch --exclusive, or --cpus-per-gpu=8" >&2
fi

srun --kill-on-bad-exit=1 "${PYTHON:-python}" launch.py "$@"
code=$?
case $code in
    0 | 2 | 130) ;;
    129 | 138 | 140 | 143) again=1 ;; # SIGHUP, SIGUSR1, SIGUSR2, SIGTERM: saved, but not finished
    *) [ "${SLURM_RESTART_COUNT:-0}" -lt "${RESTARTS:-10}" ] && again=1 ;;
esac
if [ -n "${again:-}" ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit $code
