#!/usr/bin/env bash
# Train the digits tree with three seeds, score it on the 10,000 test digits, and make the shipped
# model and the figure.   reproduction/scripts/digits.sh DATA OUT [PYTHON]
set -euo pipefail
data=$1 out=$2 python=${3:-python3}
here=$(cd "$(dirname "$0")" && pwd)
ptrees() { "$python" -m posterior_trees "$@"; }
mkdir -p "$out"

train_and_score() {
  local run=$out/seed$1
  ptrees train "$here/../../recipes/digits_inpaint.toml" --data "$data" --out "$run" --set seed="$1" \
    > "$out/seed$1.txt" 2>&1
  ptrees evaluate "$run" --data "$data" --json "$out/seed$1.json" >> "$out/seed$1.txt" 2>&1
  cp "$run/log.jsonl" "$out/seed$1.jsonl"
}

for seed in 0 1 2; do train_and_score $seed & done # side by side: one run leaves most of a GPU idle
wait
ptrees export "$out/seed0" --out "$out/digits.safetensors" --scores "$out/seed0.json"
ptrees evaluate "$out/digits.safetensors" --data "$data" --json "$out/shipped.json"
ptrees figure "$out/digits.safetensors" --data "$data" --limit 4 --out "$out/trees.png"
"$python" "$here/digits_table.py" "$out" | tee "$out/table.md"
