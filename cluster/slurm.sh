#!/bin/bash
# Trains on several nodes with Slurm, one process per node:
#
#   sbatch --nodes=2 --gpus-per-node=8 cluster/slurm.sh --config=configs/papers/llama_8b.py --workdir=/shared/runs/llama
#
# Two minutes before the end of its time, or when it is pre-empted, the run saves a checkpoint and the job goes
# back to the queue; there the same command resumes it.
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

srun --kill-on-bad-exit=1 "${PYTHON:-python}" launch.py "$@"
code=$?
if [ $code -eq 143 ] || [ $code -eq 138 ] || [ $code -eq 140 ]; then # SIGTERM, SIGUSR1, SIGUSR2: saved, but not finished
    scontrol requeue "$SLURM_JOB_ID"
fi
exit $code
