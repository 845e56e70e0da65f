#!/usr/bin/env bash
# The paper's studies. Each can be stopped at any moment; the same command continues it.
#
#   DATA=~/data bash reproduction/scripts/studies.sh STUDY [OPTIONS of ptrees reproduce]
#
# flat_vs_hierarchical   flat against hierarchical K-means on the toy mixture (no data, no GPU)
# classifier             the digit reader of `layouts` (DATA/mnist with labels; minutes on a CPU)
# epsilon                role of ε: schedule, none, hard switch (digits)
# layouts                width against depth (digits)
# tree_or_flat           nine leaves as a tree and as a flat set (digits)
# decoders               shared against disjoint decoders (digits and eyes)
# balancer               balancer and optimiser (eyes)
#
# Variables: DATA (data folder), RUNS (runs), JOBS (3: runs side by side), MINUTES (8: stop training
# then), PTREES (ptrees), PYTHON (python3: only for `classifier`).
set -euo pipefail
cd "$(dirname "$0")/../.."
STUDY=${1:?which study? see the head of this file}
shift
PTREES=${PTREES:-ptrees}
case $STUDY in
flat_vs_hierarchical)
  $PTREES reproduce flat_vs_hierarchical "$@"
  ;;
classifier)
  ${PYTHON:-python3} -m posterior_trees_paper.studies.classifier --data "${DATA:?set DATA to the data folder}" \
    --out reproduction/posterior_trees_paper/studies/classifier.safetensors "$@"
  ;;
epsilon | layouts | tree_or_flat | decoders | balancer)
  $PTREES reproduce "recipes/studies/$STUDY.toml" --data "${DATA:?set DATA to the data folder}" \
    --runs "${RUNS:-runs}" --jobs "${JOBS:-3}" --minutes "${MINUTES:-8}" "$@"
  ;;
*)
  echo "unknown study $STUDY; see the head of $0" >&2
  exit 2
  ;;
esac
