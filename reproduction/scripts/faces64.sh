#!/usr/bin/env bash
# Faces at 64×64, all of it by itself on a machine with a GPU: trainings side by side, then the comparisons,
# RePaint last, and the table of all. Start it and leave:
#
#   DATA=~/data HOME64=~/faces64 setsid nohup bash reproduction/scripts/faces64.sh >/dev/null 2>&1 &
#
# What is there so far is always in HOME64/comparison.tar.gz (packed every 45 s, without the trees of single faces;
# HOME64/log tells the rest, HOME64/finished ends it). Stopped, the same command continues; nothing that was scored is scored again.
# On one H200 trainings took 12 minutes, comparisons 14, with CUDA's MPS started first (nvidia-cuda-mps-control -d;
# then killing one training ends all).
# DATA needs faces256 and more_faces128 (shrink_set.py makes them small). MINUTES (28) is all the time there is;
# COMMIT names the code where a copy has no history. TRY=1 rehearses, as in comparison.sh.
set -u
cd "$(dirname "$0")/../.."
DATA=${DATA:?set DATA to the data folder} HOME64=${HOME64:?set HOME64 to a folder for what comes out}
export DATA PTREES=${PTREES:-"python3 -m posterior_trees"} RUNS=$HOME64/runs OUT=$HOME64/comparison PYTHONUNBUFFERED=1
export PYTHONPATH=$PWD/src:$PWD/reproduction${PYTHONPATH:+:$PYTHONPATH} PTREES_COMMIT=${COMMIT:-} COMPILE=1
[ "${TRY:-0}" = 0 ] || export COMPILE=
mkdir -p "$OUT/logs" "$RUNS"
rm -f "$HOME64/finished"
START=$(date +%s) TOTAL=$((60 * ${MINUTES:-28}))
left() { # minutes left, so many seconds before the end
  local seconds=$((START + TOTAL - $(date +%s) - $1))
  echo $((seconds > 60 ? seconds / 60 : 1))
}
pack() {
  local run
  for run in "$RUNS"/faces64/* "$RUNS"/faces64_*; do
    [ -f "$run/log.jsonl" ] && cp "$run/log.jsonl" "$OUT/logs/$(basename "$run").jsonl"
  done
  cp -r "$RUNS/faces64/judged" "$OUT/" 2>/dev/null && find "$OUT/judged" -name '*.safetensors' -size +8M -delete
  tar czf "$HOME64/comparison.part" --exclude=parts -C "$HOME64" comparison log && mv "$HOME64/comparison.part" "$HOME64/comparison.tar.gz"
}
warm() { # beside the trainings, compile what the comparisons need: the compiler keeps it on disk
  local run
  for run in faces64/faces_eyes faces64_conditional faces64_prior faces64_cgan_eyes; do
    until [ -f "$RUNS/$run/best.safetensors" ]; do sleep 3; done
    mkdir -p "$HOME64/warm/$(basename $run)"
    cp "$RUNS/$run"/{best.safetensors,recipe.toml} "$HOME64/warm/$(basename $run)/"
  done
  cd "$HOME64/warm" && $PTREES compare faces_eyes --data "$DATA" --limit 10 --samples 100 --group 10 --out out \
    --minutes 3 --compile --method conditional=faces64_conditional:conditional:steps=2 \
    --method ddnm=faces64_prior:ddnm:steps=2 --method cgan=faces64_cgan_eyes
}
exec >>"$HOME64/log" 2>&1
date
warmer=
if [ -n "$COMPILE" ]; then (warm) >"$HOME64/warm.log" 2>&1 & warmer=$!; fi
(while sleep 45; do pack; done) >/dev/null 2>&1 & packer=$!
for try in 1 2; do # what a fault of the GPU ended goes on where it was
  MINUTES=$(left 840) bash reproduction/scripts/comparison.sh faces-train && break
done
echo "# all trained, or no time left: $(date)"
export MINUTES=$(left 10)
bash reproduction/scripts/comparison.sh faces-compare ||
  COMPILE= bash reproduction/scripts/comparison.sh faces-compare
bash reproduction/scripts/comparison.sh faces-table
date
kill "$packer" ${warmer:+"$warmer"} 2>/dev/null
pack
touch "$HOME64/finished"
