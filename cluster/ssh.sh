#!/bin/bash
# Trains on hosts that this one reaches by ssh, one process per host; the repository and the run folder must have
# the same paths on all of them:
#
#   cluster/ssh.sh node1 node2 -- --config=configs/lm.py --workdir=/shared/runs/lm
#
# If one process ends with an error, all end, and so does this script, with its exit code.
set -uo pipefail

hosts=()
while [ $# -gt 0 ] && [ "$1" != "--" ]; do
    hosts+=("$1")
    shift
done
if [ ${#hosts[@]} -eq 0 ] || [ "${1:-}" != "--" ]; then
    echo "usage: cluster/ssh.sh HOST [HOST ...] -- FLAGS of launch.py" >&2
    exit 2
fi
shift

folder=$(pwd)
meeting="--coordinator=${hosts[0]}:${PORT:-9876} --num_processes=${#hosts[@]}"
processes=()
for i in "${!hosts[@]}"; do
    printf -v command '%q ' cd "$folder"
    printf -v arguments '%q ' "${PYTHON:-python}" launch.py "$@"
    ${SSH:-ssh} "${hosts[$i]}" "$command && $arguments $meeting --process_id=$i" &
    processes+=($!)
done
code=0
for process in "${processes[@]}"; do
    wait "$process" || code=$?
done
exit $code
