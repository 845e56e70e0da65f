#!/usr/bin/env bash
# Trees that grow where one looks, each beside the one-pass tree of the same width, all of it by itself on a
# machine with a GPU: trainings side by side, each judged on its test pictures, then the tables. Start it and leave:
#
#   bash reproduction/scripts/small.sh data ~/data ~/small_data          # once: pictures at 128×128, to carry
#   DATA=~/small_data HOME32=~/growing setsid nohup bash reproduction/scripts/growing.sh >/dev/null 2>&1 &
#
# What is there so far is always in HOME32/growing.tar.gz (packed every 45 s; HOME32/log tells the rest,
# HOME32/finished ends it). Stopped, the same command continues; what is done is not trained again.
# The tables: python reproduction/scripts/growing_models.py FOLDER
#
# MINUTES (28) is all the time there is, ONLY (names, e.g. "digits digits_tree") leaves the others out, SIDE_BY_SIDE
# (7) trainings run at once, SET changes all of them, COMMIT names the code where a copy has no history. TRY=1
# rehearses: tiny networks that learn for an epoch; any computer, minutes.
set -uf
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python3}
export PYTHONPATH=$PWD/src:$PWD/reproduction${PYTHONPATH:+:$PYTHONPATH} PTREES_COMMIT=${COMMIT:-} PYTHONUNBUFFERED=1
PTREES=${PTREES:-"$PYTHON -m posterior_trees"}

# name | recipe | changes. A step of a growing network takes 3.2 times the arithmetic of one of a one-pass tree (--dry-run
# counts it), so that one takes three times the epochs: equal minutes. The best weights by validation count.
TREE="network.kind=unet training.epochs"
JOBS="digits|digits|
digits_tree|digits|$TREE=78
eyes|faces_eyes|
eyes_tree|faces_eyes|$TREE=36
colour|faces_colorize|
colour_tree|faces_colorize|$TREE=36
cells|cells|
cells_tree|cells|$TREE=96
mouth|faces_mouth|
mouth_tree|faces_mouth|$TREE=36
cats|cats_colorize|
cats_tree|cats_colorize|$TREE=84
digits_seed1|digits|seed=1
digits_tree_seed1|digits|$TREE=78 seed=1
digits_seed2|digits|seed=2
digits_tree_seed2|digits|$TREE=78 seed=2
digits_whole|digits|loss.regions=0
digits_parts|digits|loss.regions=1
digits_levels2|digits|network.levels=2
digits_levels10|digits|network.levels=10
digits_fork|digits|tree.branching=9 tree.depth=1 network.levels=3
digits_wide|digits|network.width=64
digits_shape|digits|loss.features=shape
digits_edges|digits|loss.features=edges
cells_shape|cells|loss.features=shape
cells_edges|cells|loss.features=edges
cells_whole|cells|loss.regions=0
eyes_residual|faces_eyes|network.trunk=residual network.width=24 network.dropout=0.1 optimizer.lr=1e-3"

DATA=${DATA:?set DATA to the data folder} HOME32=${HOME32:?set HOME32 to a folder for what comes out}
OUT=$HOME32/growing
START=${START:-$(date +%s)}

if [ "${1:-}" = job ]; then # one line of JOBS
  IFS="|" read -r name recipe changes <<<"$2"
  grep -qs '"state": "done"' "$OUT/$name/study.json" && [ -f "$OUT/$name/grown.safetensors" ] && exit 0
  left=$((START + 60 * ${MINUTES:-28} - 150 - $(date +%s)))
  [ $left -gt 60 ] || exit 0
  case ${TRY:-0}$recipe in # stand-ins are small
    0*) ;; *cells) changes="$changes data.patch=32" ;; *s_*) changes="$changes data.size=[32,32]" ;;
  esac
  options=()
  for change in $changes ${SET:-}; do options+=(--set "$change"); done
  $PTREES study "recipes/growing/$recipe.toml" --data "$DATA" --runs "$HOME32/runs/$name" --out "$OUT/$name" \
    --minutes "$(awk "BEGIN { print $left / 60 }")" "${options[@]}" ${DEVICE:+--device "$DEVICE"}
  model=$OUT/$name/$recipe.safetensors
  [ -f "$model" ] || exit 0
  $PYTHON reproduction/scripts/growing_models.py judge "$model" "$OUT/$name/grown.safetensors" --data "$DATA" \
    --limit "${LIMIT:-500}" ${DEVICE:+--device "$DEVICE"}
  find "$OUT/$name" -name "$recipe.safetensors" -size +9M -delete # of the large ones only the numbers travel
  exit 0
fi

if [ "${TRY:-0}" != 0 ]; then
  SET="training.epochs=1 training.compile=false training.batch_size=16 training.picture_every=0 network.width=8 \
    network.steps=2 network.doublings=1 network.levels=3 network.multipliers=[1,2] network.attention=[1] \
    loss.epsilon_start=0.5 loss.epsilon_scale=0.2 data.repeat=1 optimizer.warmup_steps=1 ${SET:-}"
fi
export DATA HOME32 OUT START PTREES SET=${SET:-} MINUTES=${MINUTES:-28}
mkdir -p "$OUT"
rm -f "$HOME32/finished"
exec >>"$HOME32/log" 2>&1
date
pack() {
  tar czf "$HOME32/growing.part" -C "$HOME32" growing log && mv "$HOME32/growing.part" "$HOME32/growing.tar.gz"
}
(while sleep 45; do pack; done) >/dev/null 2>&1 & packer=$!
while IFS= read -r job; do
  [ -n "${ONLY:-}" ] && [[ " $ONLY " != *" ${job%%|*} "* ]] || printf '%s\0' "$job"
done <<<"$JOBS" | xargs -0 -P "${SIDE_BY_SIDE:-7}" -I{} bash reproduction/scripts/growing.sh job {}
$PYTHON reproduction/scripts/growing_models.py "$OUT" | tee "$OUT/tables.md"
date
kill "$packer" 2>/dev/null
pack
touch "$HOME32/finished"
