#!/usr/bin/env bash
# A small model of every task (128×128, at most 8 MB in bfloat16), all of it by itself: each learns from pictures
# at half the size first, a quarter of the work, then at the whole one; then it is judged on its test images.
#
#   bash reproduction/scripts/small.sh data ~/data ~/small_data          # once: pictures at 128×128 and at 64×64
#   export DATA=~/small_data HOME30=~/small OMP_NUM_THREADS=1 ONLY="eyes mouth colour cats shoes cells"
#   SIDE_BY_SIDE=2 MINUTES=600 SET=training.compile=false bash reproduction/scripts/small.sh       # two cores, no GPU
#
# With a GPU, without ONLY, SET and SIDE_BY_SIDE: also the networks of the recipes on the same pictures (the table
# large | small), without the further faces, and other seeds. Start it with setsid nohup and leave; what is there so
# far is always in HOME30/small.tar.gz (packed every 45 s; HOME30/log tells the rest, HOME30/finished ends it).
# Stopped, the same command continues; what is done is not trained again.
# Then, where the data are whole: python reproduction/scripts/small_models.py FOLDER --adopt --data ~/data
#
# Faces learn from faces256 and more_faces128. MINUTES (28) is all the time there is, ONLY (names, e.g. "eyes
# eyes_own") leaves the others out, SIDE_BY_SIDE (7) trainings run at once, SET changes all of them, COMMIT names
# the code where a copy has no history. TRY=1 rehearses: tiny networks that learn for an epoch; any computer, minutes.
set -uf
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python3}
export PYTHONPATH=$PWD/src:$PWD/reproduction${PYTHONPATH:+:$PYTHONPATH} PTREES_COMMIT=${COMMIT:-} PYTHONUNBUFFERED=1
PTREES=${PTREES:-"$PYTHON -m posterior_trees"}

if [ "${1:-}" = data ]; then # whole pictures at 128×128, and at half of it; what is that small already is copied
  mkdir -p "$3/half"
  for set in faces256 cats256 more_faces128; do
    $PYTHON reproduction/scripts/shrink_set.py "$2/$set.tar" "$3/$set.tar" 128 "${QUALITY:-92}" || exit
    $PYTHON reproduction/scripts/shrink_set.py "$2/$set.tar" "$3/half/$set.tar" 64 95 || exit
  done
  cp -r "$2/shoes128.tar" "$2/cells_actin_dna.tar" "$2/mnist" "$3/"
  cp "$2/shoes128.tar" "$3/half/"
  exec du -sh "$3"/*
fi

# name | recipe | changes | the job whose model it begins with. Those named half_… are of half the size. Counted in
# epochs, the schedules are those of the recipes, by the share of the training.
SMALL="network.width=16 network.steps=5 network.doublings=3 network.decoder=shared network.dropout=0.1 \
  training.precision=bf16-mixed training.picture_every=0 training.calibrate=true data.validation=0.1"
HALF="data.size=[64,64] $SMALL training.average_half_life=0.4"
END="data.size=[128,128] $SMALL training.average_half_life=0.3 optimizer.lr=1e-3 loss.epsilon_start=0 loss.epsilon_scale=0.1"
FACES="data.extra=['more_faces128']" FLIP="data.augment=['flip']" LATE="loss.guided_epochs=0 balancer.start=0"
HOLE="training.epochs=10 loss.epsilon_start=1.5 loss.epsilon_scale=0.03 balancer.start=2"
OWN="training.epochs=32 loss.epsilon_start=5 loss.epsilon_scale=0.1 balancer.start=6.6"
CATS="training.epochs=20 loss.epsilon_start=4 loss.epsilon_scale=1.6"
SHOES="training.epochs=13 loss.epsilon_start=2.6 loss.epsilon_scale=1"
CELLS="data.augment=['symmetries','brightness'] data.validation=0.15 training.calibrate=true"
LARGE="data.size=[128,128] $FACES data.validation=0.1 training.calibrate=true"
LARGE_HOLE="$LARGE training.epochs=14 loss.epsilon_start=2 loss.epsilon_scale=0.04 balancer.start=3"
JOBS="half_eyes|faces_eyes|$HALF $FACES $HOLE loss.guided_epochs=7.5|
half_mouth|faces_mouth|$HALF $FACES $HOLE loss.guided_epochs=5.5|
half_colour|faces_colorize|$HALF $FACES training.epochs=8 loss.epsilon_start=1.8 loss.epsilon_scale=0.7|
half_cats|cats_colorize|$HALF $FLIP $CATS|
half_shoes|shoes_from_edges|$HALF $SHOES|
eyes|faces_eyes|$END $FACES training.epochs=2 $LATE|half_eyes
mouth|faces_mouth|$END $FACES training.epochs=2 $LATE|half_mouth
colour|faces_colorize|$END $FACES training.epochs=2|half_colour
cats|cats_colorize|$END $FLIP training.epochs=6|half_cats
shoes|shoes_from_edges|$END training.epochs=3 loss.conscience=0|half_shoes
cells|cells_actin_to_dna|$CELLS|
half_eyes_own|faces_eyes|$HALF $OWN loss.guided_epochs=25|
half_mouth_own|faces_mouth|$HALF $OWN loss.guided_epochs=18|
half_cats_seed1|cats_colorize|$HALF $FLIP $CATS seed=1|
half_cats_seed2|cats_colorize|$HALF $FLIP $CATS seed=2|
cells_free|cells_actin_to_dna|$CELLS loss.conscience=0|
cells_shape|cells_actin_to_dna|$CELLS loss.features=shape|
cells_firm|cells_actin_to_dna|$CELLS network.dropout=0.3 optimizer.weight_decay=1|
cells_firm_free|cells_actin_to_dna|$CELLS network.dropout=0.3 optimizer.weight_decay=1 loss.conscience=0|
cells_seed1|cells_actin_to_dna|$CELLS seed=1|
cells_free_seed1|cells_actin_to_dna|$CELLS loss.conscience=0 seed=1|
digits|digits_inpaint|data.validation=0.05 network.c_init=3|
eyes_large|faces_eyes|$LARGE_HOLE loss.guided_epochs=10.5|
mouth_large|faces_mouth|$LARGE_HOLE loss.guided_epochs=8|
colour_large|faces_colorize|$LARGE training.epochs=12 loss.epsilon_start=2.5 loss.epsilon_scale=1|
cats_large|cats_colorize|data.size=[128,128] training.epochs=36 loss.epsilon_start=6 loss.epsilon_scale=2.5|
shoes_large|shoes_from_edges||"

DATA=${DATA:?set DATA to the data folder} HOME30=${HOME30:?set HOME30 to a folder for what comes out}
OUT=$HOME30/small
START=${START:-$(date +%s)}

if [ "${1:-}" = job ]; then # one line of JOBS; a second process waits for the first
  IFS="|" read -r name recipe changes start <<<"$2"
  exec 9>"$OUT/$name.lock"
  flock 9
  grep -qs '"state": "done"' "$OUT/$name/study.json" && exit 0
  [ -z "$start" ] || bash reproduction/scripts/small.sh job "$(grep "^$start|" <<<"$JOBS")" 9>&-
  left=$((START + 60 * ${MINUTES:-28} - 90 - $(date +%s)))
  [ $left -gt 60 ] || exit 0
  [ "${TRY:-0}" = 0 ] || [ "$recipe" != cells_actin_to_dna ] || changes="data.patch=32" # stand-ins are small
  options=()
  for change in $changes ${SET:-}; do options+=(--set "$change"); done
  case $name in half_*) DATA=$DATA/half ;; esac
  $PTREES study "recipes/$recipe.toml" --data "$DATA" --runs "$HOME30/runs/$name" --out "$OUT/$name" \
    --minutes "$(awk "BEGIN { print $left / 60 }")" "${options[@]}" ${start:+--from "$HOME30/runs/$start/$recipe"} \
    ${DEVICE:+--device "$DEVICE"}
  [ -f "$OUT/$name/$recipe.safetensors" ] || exit 0
  wc -c <"$OUT/$name/$recipe.safetensors" >"$OUT/$name/bytes"
  find "$OUT/$name" -name "$recipe.safetensors" -size +9M -delete # of the large ones only the scores travel
  exit 0
fi

if [ "${TRY:-0}" != 0 ]; then
  SET="training.epochs=1 training.compile=false training.batch_size=16 training.picture_every=0 network.width=9 \
    network.steps=2 network.doublings=1 loss.epsilon_start=0.5 loss.epsilon_scale=0.2 loss.guided_epochs=0 \
    balancer.start=0.5 data.repeat=1 optimizer.warmup_steps=1 training.calibrate=false ${SET:-}"
fi
export DATA HOME30 OUT START PTREES SET=${SET:-} MINUTES=${MINUTES:-28}
mkdir -p "$OUT"
rm -f "$HOME30/finished"
exec >>"$HOME30/log" 2>&1
date
pack() {
  tar czf "$HOME30/small.part" -C "$HOME30" small log && mv "$HOME30/small.part" "$HOME30/small.tar.gz"
}
(while sleep 45; do pack; done) >/dev/null 2>&1 & packer=$!
while IFS= read -r job; do
  [ -n "${ONLY:-}" ] && [[ " $ONLY " != *" ${job%%|*} "* ]] || printf '%s\0' "$job"
done <<<"$JOBS" | xargs -0 -P "${SIDE_BY_SIDE:-7}" -I{} bash reproduction/scripts/small.sh job {}
$PYTHON reproduction/scripts/small_models.py "$OUT"
date
kill "$packer" 2>/dev/null
pack
touch "$HOME30/finished"
