#!/usr/bin/env bash
# The comparison, in stages that can be stopped and repeated: each works for MINUTES (9) and the same
# command continues it. Weights for inference come out in bfloat16, RUNS/<name>/best.safetensors.
#
#   DATA=~/data bash reproduction/scripts/comparison.sh STAGE
#
# digits-train     cGAN, rcGAN and the plain MSE network, side by side; then conditional diffusion and the
#                  prior, one after the other
# digits-check     are unconditional digits digits?      → OUT/digits_prior.json
# digits-compare   100 test digits, 100 samples each     → OUT/digits
# digits-1000      20 test digits, 1000 samples each     → OUT/digits_1000
# faces-train      64×64, all side by side: trees and cGANs of three tasks, the conditional diffusion model of
#                  all three and the prior. Trees have the network of the diffusion models (NETWORK below);
#                  roots of samplers are held against theirs
# faces-eyes, faces-mouth, faces-colorize                → OUT/faces64_<task>
# faces-compare    the three of them in a row, RePaint last: it takes longest
# faces-table      all of them in one table, below the paper's own rows            → OUT/table1.md
# (faces64.sh does all that is about faces unattended)
#
# Variables: DATA (data folder), RUNS (runs), OUT (RUNS/comparison), MODEL (digits: the tree), EXTRA (more_faces128:
# further faces that all methods learn from; empty: none),
# MINUTES (9), IMAGES (100) and SAMPLES (100) of a comparison, GROUP (10) images sampled together,
# ONLY (names of methods, e.g. "ddnm ddrm": the others keep what they have, and a last call without
# it makes the whole table), COMPILE (1: fuse all networks, ours too, which takes a minute each), SET
# (changes of all baselines' recipes, e.g. "baseline.base=48 seed=1"), PTREES (ptrees).
# TRY=1 rehearses a stage on tiny networks, which learn for seconds: two images, ten samples, two steps;
# any computer, minutes.
set -euo pipefail
STAGE=${1:?which stage? see the head of this file}
DATA=${DATA:?set DATA to the data folder}
RUNS=${RUNS:-runs} MODEL=${MODEL:-digits} ONLY=${ONLY:-}
OUT=${OUT:-$RUNS/comparison} EXTRA=${EXTRA-more_faces128} PTREES=${PTREES:-ptrees}
IMAGES=${IMAGES:-100} SAMPLES=${SAMPLES:-100} GROUP=${GROUP:-10}
END=$((SECONDS + 60 * ${MINUTES:-9}))
read -ra CHANGES <<<"${SET:-}"
BASELINES=()
for change in ${CHANGES[@]+"${CHANGES[@]}"}; do BASELINES+=(--set "$change"); done
# The clip: mouths lost 1.9 dB of their root in one epoch without (logs:comparison/faces64_first).
NETWORK="--set network.kind=residual --set network.width=40 --set network.decoder=shared \
  --set network.dropout=0.1 --set optimizer.lr=1e-3 --set optimizer.clip=0.1"
ALL=() TREES=() CHECK=() STEPS="" REPAINT=""
if [ "${TRY:-0}" != 0 ]; then
  ALL=(--set training.epochs=1 --set training.compile=false)
  TREES=(--set training.batch_size=1000 --set network.width=9 --set training.picture_every=0)
  BASELINES+=(--set training.batch_size=6 --set baseline.base=8 --set baseline.width=9 --set baseline.critic=4 --set baseline.log_every=1)
  CHECK=(--samples 20 --chain 2)
  IMAGES=2 SAMPLES=10 GROUP=2 STEPS="steps=2" REPAINT="steps=4,jump=2,resamplings=2"
fi

left() { # minutes left, at least none
  local seconds=$((END - SECONDS))
  seconds=$((seconds > 0 ? seconds : 0))
  echo "$((seconds / 60)).$(printf %02d $((seconds % 60 * 100 / 60)))"
}

baselines() { # train these recipes one after the other, while there is time
  local name minutes
  for name in "$@"; do
    minutes=$(left)
    [ "${TRY:-0}" = 0 ] || minutes=0.2
    if [ $SECONDS -lt $((END - 20)) ]; then
      $PTREES baseline train "recipes/baselines/$name.toml" --data "$DATA" --out "$RUNS/$name" \
        --minutes "$minutes" ${EPOCHS:+--set training.epochs=$EPOCHS} ${ALL[@]+"${ALL[@]}"} ${BASELINES[@]+"${BASELINES[@]}"}
    fi
  done
}

trees() { # train trees one after the other: where to, then recipes and options
  local runs=$1
  shift
  $PTREES study "$@" --data "$DATA" --runs "$RUNS/$runs" --out "$RUNS/$runs/judged/$(basename "$1" .toml)" \
    --minutes "$(left)" ${ALL[@]+"${ALL[@]}"} ${TREES[@]+"${TREES[@]}"}
}

together() { # run these command lines side by side; fail if one of them fails
  local line pids=() status=0
  for line in "$@"; do
    eval "$line" &
    pids+=($!)
  done
  for line in "${pids[@]}"; do wait "$line" || status=1; done
  return $status
}

compare() { # model, folder, plain MSE network (or none), then NAME RUN SAMPLER OPTIONS of every method
  local model=$1 folder=$2 mse=$3 methods=() options
  shift 3
  while [ $# -gt 0 ]; do
    options=$4
    [ -z "$STEPS" ] || options=$STEPS
    [ -z "$REPAINT" ] || [ "$3" != repaint ] || options=$REPAINT
    [ "$3" != gan ] || options=""
    if [ -z "$ONLY" ] || [[ " $ONLY " == *" $1 "* ]]; then
      methods+=(--method "$1=$RUNS/$2:${3/gan/}:$options")
    fi
    shift 4
  done
  $PTREES compare "$model" --data "$DATA" --limit "$IMAGES" --samples "$SAMPLES" --group "$GROUP" \
    ${mse:+--mse "$mse"} --out "$OUT/$folder" --minutes "$(left)" ${COMPILE:+--compile} "${methods[@]}"
}

faces() { # task
  local repaint=()
  if [ "$1" != colorize ]; then # masks only; 280 evaluations in place of 2410
    repaint=(repaint-100-10-3 faces64_prior repaint steps=100,jump=10,resamplings=3)
  fi
  compare "$RUNS/faces64/faces_$1" "faces64_$1" "" \
    conditional faces64_conditional conditional "" \
    ddnm faces64_prior ddnm "" \
    ddrm faces64_prior ddrm "" \
    cgan "faces64_cgan_$1" gan "" \
    ${repaint[@]+"${repaint[@]}"}
}

each() { # compare on these tasks, while there is time
  local task
  for task in "$@"; do faces "$task" || [ $SECONDS -ge $END ]; done
}

case $STAGE in
digits-train)
  together "baselines digits_rcgan" "baselines digits_cgan" \
    "trees digits_plain recipes/digits_inpaint.toml --set tree.depth=0 --set network.width=36"
  baselines digits_conditional digits_prior
  ;;
digits-check)
  $PTREES baseline digits "$RUNS/digits_prior" --data "$DATA" --out "$OUT/digits_prior.json" \
    ${CHECK[@]+"${CHECK[@]}"}
  ;;
digits-compare)
  compare "$MODEL" digits "$RUNS/digits_plain/digits_inpaint" \
    conditional digits_conditional conditional "" \
    ddnm digits_prior ddnm "" \
    ddrm digits_prior ddrm "" \
    cgan digits_cgan gan "" \
    rcgan digits_rcgan gan "" \
    diffpir digits_prior diffpir "" \
    repaint digits_prior repaint ""
  ;;
digits-1000)
  [ "${TRY:-0}" != 0 ] || IMAGES=20 SAMPLES=1000 GROUP=5
  compare "$MODEL" digits_1000 "$RUNS/digits_plain/digits_inpaint" \
    conditional digits_conditional conditional "" \
    ddnm digits_prior ddnm ""
  ;;
faces-train)
  conditional="" prior="" gan="" eyes="" mouth="" colorize=""
  if [ -n "$EXTRA" ]; then # an epoch of 14,000 faces, not 4,000: whatever is counted in epochs is fewer
    BASELINES+=(--set "data.extra=['$EXTRA']") TREES+=(--set "data.extra=['$EXTRA']")
    common="--set training.average_half_life=0.4 --set training.calibrate=true"
    holes="$common --set training.epochs=14 --set loss.epsilon_start=2 --set loss.epsilon_scale=0.04 --set balancer.start=3"
    eyes="$holes --set loss.guided_epochs=10.5" mouth="$holes --set loss.guided_epochs=8"
    colorize="$common --set training.epochs=12 --set loss.epsilon_start=2.5 --set loss.epsilon_scale=1"
    conditional=EPOCHS=93 prior=EPOCHS=54 gan=EPOCHS=8 # 1.3 and 0.8 million images
  fi
  lines=("$conditional baselines faces64_conditional" "$prior baselines faces64_prior")
  for task in eyes mouth colorize; do
    apart="" # children by squared errors of the whole picture, as K-means has it
    [ $task != mouth ] || apart="--set loss.features=pixels --set 'loss.focus=[]'"
    lines+=("$gan baselines faces64_cgan_$task" "trees faces64 recipes/faces_$task.toml $apart \
      --set 'data.size=[64,64]' --set data.validation=0.1 $NETWORK ${!task}")
  done
  together "${lines[@]}"
  ;;
faces-eyes | faces-mouth | faces-colorize)
  faces "${STAGE#faces-}"
  ;;
faces-compare) # first what is quick, of all three; colours have no RePaint
  [ -n "$ONLY" ] || ONLY="conditional ddnm ddrm cgan" each eyes mouth colorize
  each eyes mouth ${ONLY:+colorize}
  ;;
faces-table)
  folders=()
  for task in colorize mouth eyes; do
    [ ! -f "$OUT/faces64_$task/table.json" ] || folders+=("$OUT/faces64_$task")
  done
  PYTHONPATH=$PWD/src:$PWD/reproduction${PYTHONPATH:+:$PYTHONPATH} \
    ${PYTHON:-python3} -m posterior_trees_paper.compare.joint "${folders[@]}" --out "$OUT"
  ;;
*)
  echo "unknown stage $STAGE; see the head of $0" >&2
  exit 2
  ;;
esac
