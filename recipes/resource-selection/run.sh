#!/usr/bin/env bash
# The published job under every policy on the emulated lab: each policy's machines with equal parts of the batch, as
# published; the fastest machine alone; and what the planner chooses. Ends with a report.
#
#   sudo recipes/resource-selection/run.sh [RUNS] [OPTIONS OF TRAIN ...]
#
# Root is for the emulated machines alone. MNIST first: phalanx data fetch mnist. The whole takes about half an hour;
# --set data.limit=6000 makes it four minutes.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
runs=${1:-runs/resource-selection}
shift || true
state=$(mktemp -d)

tear_down() {
  phalanx pool emulate "$here/cluster.yaml" down --state "$state" || true
  rm -rf "$state"
}
trap tear_down EXIT

phalanx pool emulate "$here/cluster.yaml" up --state "$state"
pool=$state/lab/pool.yaml
phalanx pool probe "$pool"
train() { phalanx train "$here/job.yaml" --pool "$pool" --runs "$runs" "$@"; }
for policy in fastest cheapest energy all; do
  train --select "$policy" --set "name=$policy" "$@"
done
# On machines with and without real cards these are --select gpu and --select cpu.
for label in gpu cpu; do
  train --where "label=$label" --set "name=$label" "$@"
done
phalanx plan "$here/job.yaml" --pool "$pool" --goal time --calibrate never --runs "$runs" --set name=planned "$@" \
  -o "$state/plan.json"
phalanx train --plan "$state/plan.json" --runs "$runs"
phalanx report "$runs" -o "$runs/report.html" --markdown "$runs/report.md"
