#!/bin/sh
# The numbers of this folder: sh reproduction/scripts/speed.sh cpu [OUT]   (one core, about 7 minutes)
#                             sh reproduction/scripts/speed.sh cuda [OUT]  (one GPU)
# Each command prints its table and writes it, with the conditions it was measured under, into OUT
# (runs/speed); `python reproduction/scripts/collect.py OUT speed` keeps them.
set -e
cd "$(dirname "$0")/../.."
here=${2:-runs/speed}
mkdir -p "$here"
ptrees() { "${PYTHON:-python}" -m posterior_trees "$@"; }

case "$1" in
cpu)
  export OMP_NUM_THREADS=1
  ptrees bench inference --device cpu --recipe recipes/digits_inpaint.toml --onnx-runtime --batch 1 \
    --repeat 100 --json $here/cpu_inference_digit.json
  ptrees bench inference --device cpu --recipe recipes/digits_inpaint.toml --onnx-runtime --compile --torch-compile \
    --batch 1 16 --repeat 40 --json $here/cpu_inference_digits.json
  ptrees bench inference --device cpu --size 256 --c-init 8 --onnx-runtime \
    --batch 1 --repeat 7 --seconds 60 --json $here/cpu_inference_256.json
  ptrees bench train --device cpu --json $here/cpu_train_digits.json
  ptrees bench balancer --device cpu --json $here/cpu_balancer.json
  ptrees bench kmeans --device cpu --json $here/cpu_kmeans.json
  ptrees bench growth --device cpu --seconds 6 --json $here/cpu_growth.json \
    --plot $here/cpu_growth.png
  ;;
cuda)
  ptrees bench inference --device cuda --size 256 --c-init 8 --precision bfloat16 --compile \
    --batch 1 32 128 --repeat 50 --json $here/cuda_inference_256.json
  ptrees bench inference --device cuda --size 256 --c-init 8 --precision bfloat16 --compile \
    --batch 1 --repeat 200 --json $here/cuda_inference_256_batch1.json
  ptrees bench inference --device cuda --recipe recipes/digits_inpaint.toml --precision bfloat16 \
    --compile --batch 1 1024 --repeat 50 --json $here/cuda_inference_digits.json
  ptrees bench inference --device cuda --recipe recipes/faces_eyes.toml --compile --torch-compile \
    --batch 1 8 32 128 --repeat 50 --json $here/cuda_inference_eyes.json
  ptrees bench train --device cuda --recipe recipes/digits_inpaint.toml --batch 32 256 \
    --set training.epochs=70 --json $here/cuda_train_digits.json
  ptrees bench train --device cuda --recipe recipes/digits_inpaint.toml --batch 32 --together 100 \
    --set training.epochs=70 --json $here/cuda_train_digits_32.json
  ptrees bench train --device cuda --recipe recipes/digits_inpaint.toml --batch 32 --together 100 \
    --set training.epochs=70 --set balancer.refresh_every=8 --json $here/cuda_train_digits_refresh.json
  ptrees bench train --device cuda --recipe recipes/digits_inpaint.toml \
    --json $here/cuda_train_recommended.json
  ptrees bench train --device cuda --recipe recipes/faces_eyes.toml --limit 4000 --batch 32 \
    --set network.width=0 --set network.c_init=8 --set network.steps=4 \
    --set network.decoder=disjoint --json $here/cuda_train_faces.json
  ptrees bench balancer --device cuda --set-sizes 24000 60000 --skip-missing \
    --json $here/cuda_balancer.json
  ptrees bench kmeans --device cuda --batch 100 --size 20 28 --skip-missing \
    --json $here/cuda_kmeans.json
  ptrees bench growth --device cuda --size 256 --c-init 8 --seconds 3 \
    --json $here/cuda_growth.json --plot $here/cuda_growth.png
  ;;
*)
  echo "usage: sh reproduction/scripts/speed.sh cpu|cuda [OUT]" >&2
  exit 2
  ;;
esac
