#!/usr/bin/env bash
# The comparison, in stages that can be stopped and repeated: each works for MINUTES (9) and the same
# command continues it. Weights for inference come out in bfloat16, RUNS/<name>/best.safetensors.
#
#   DATA=~/data bash results/comparison/run.sh STAGE
#
# digits-train     prior, conditional diffusion, cGAN, rcGAN
# digits-compare   100 test digits, 100 samples each   → results/comparison/digits
# digits-1000      20 test digits, 1000 samples each   → results/comparison/digits_1000
# faces-train      64×64: prior, conditional diffusion for three tasks, cGANs, trees
# faces-compare    eyes, mouth, colourisation          → results/comparison/faces64_<task>
#
# Variables: DATA (data folder), RUNS (runs), OUT (results/comparison), MODEL (digits: the tree),
# MINUTES (9), PTREES (ptrees).
set -euo pipefail
STAGE=${1:?which stage? see the head of this file}
DATA=${DATA:?set DATA to the data folder}
RUNS=${RUNS:-runs} OUT=${OUT:-results/comparison} MODEL=${MODEL:-digits}
PTREES=${PTREES:-ptrees}
END=$((SECONDS + 60 * ${MINUTES:-9}))

left() { # minutes left, at least none
  local seconds=$((END - SECONDS))
  echo "$(((seconds > 0 ? seconds : 0) / 60)).$(printf %02d $(((seconds > 0 ? seconds : 0) % 60 * 100 / 60)))"
}

train() { # recipe name, if there is time
  if [ $SECONDS -lt $((END - 20)) ]; then
    $PTREES baseline train "recipes/baselines/$1.toml" --data "$DATA" --out "$RUNS/$1" --minutes "$(left)"
  fi
}

trees() { # the trees of the three tasks at 64×64, with the same width and data as the others
  if [ $SECONDS -lt $((END - 20)) ]; then
    $PTREES study recipes/faces_eyes.toml recipes/faces_mouth.toml recipes/faces_colorize.toml \
      --data "$DATA" --runs "$RUNS/faces64" --out "$OUT/faces64_trees" \
      --set "data.size=[64,64]" --minutes "$(left)"
  fi
}

case $STAGE in
digits-train)
  for name in digits_conditional digits_prior digits_rcgan digits_cgan; do train $name; done
  ;;
digits-compare)
  $PTREES compare "$MODEL" --data "$DATA" --images 100 --samples 100 --out "$OUT/digits" \
    --minutes "$(left)" \
    --method "conditional=$RUNS/digits_conditional" \
    --method "ddnm=$RUNS/digits_prior:ddnm" \
    --method "ddrm=$RUNS/digits_prior:ddrm" \
    --method "cgan=$RUNS/digits_cgan" \
    --method "rcgan=$RUNS/digits_rcgan" \
    --method "diffpir=$RUNS/digits_prior:diffpir" \
    --method "repaint=$RUNS/digits_prior:repaint"
  ;;
digits-1000)
  $PTREES compare "$MODEL" --data "$DATA" --images 20 --samples 1000 --group 5 \
    --out "$OUT/digits_1000" --minutes "$(left)" \
    --method "conditional=$RUNS/digits_conditional" \
    --method "ddnm=$RUNS/digits_prior:ddnm"
  ;;
faces-train)
  for name in faces64_conditional faces64_prior; do train $name; done
  trees
  for task in eyes mouth colorize; do train "faces64_cgan_$task"; done
  ;;
faces-compare)
  for task in eyes mouth colorize; do
    repaint=()
    if [ $task != colorize ]; then # masks only; 280 evaluations in place of 2410
      repaint=(--method "repaint-100-10-3=$RUNS/faces64_prior:repaint:steps=100,jump=10,resamplings=3")
    fi
    $PTREES compare "$RUNS/faces64/faces_$task" --data "$DATA" --images 100 --samples 100 \
      --out "$OUT/faces64_$task" --minutes "$(left)" \
      --method "conditional=$RUNS/faces64_conditional" \
      --method "ddnm=$RUNS/faces64_prior:ddnm" \
      --method "ddrm=$RUNS/faces64_prior:ddrm" \
      --method "cgan=$RUNS/faces64_cgan_$task" \
      ${repaint[@]+"${repaint[@]}"} || [ $SECONDS -ge $END ]
  done
  ;;
*)
  echo "unknown stage $STAGE; see the head of $0" >&2
  exit 2
  ;;
esac
