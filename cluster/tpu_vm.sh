#!/bin/bash
# Trains on a slice of Cloud TPUs, whose hosts (VMs) find each other by their metadata. On every VM the repository
# must be in ~/transformer with its requirements and jax[tpu], and the run folder must be a file system that all
# mount (Filestore, or a bucket by gcsfuse):
#
#   cluster/tpu_vm.sh NAME ZONE --config=configs/papers/llama_8b.py --workdir=/shared/runs/llama
set -euo pipefail

if [ $# -lt 3 ]; then
    echo "usage: cluster/tpu_vm.sh NAME ZONE FLAGS of launch.py" >&2
    exit 2
fi
name=$1 zone=$2
shift 2
printf -v arguments '%q ' python launch.py "$@"
exec "${GCLOUD:-gcloud}" compute tpus tpu-vm ssh "$name" --zone="$zone" --worker=all \
    --command="cd ~/transformer && $arguments"
