#!/usr/bin/env bash
# Ways to shard on two GPUs: the table of docs/sharding.md.
#   tests/bench/two_gpus.sh TOKENIZER_FOLDER CHATS.jsonl.gz OUT.jsonl
set -euo pipefail
again=sharding.activation_checkpointing
float8="kernels.float8=tensorwise; kernels.compile=true"
python3 -m torch.distributed.run --nproc-per-node 2 tests/bench/variants.py tests/bench/random_weights.yaml --steps 3 \
  --kernels 1 --json "$3" --set model.path=builtin:qwen3.5-9b --set model.tokenizer="$1" --set data.train="$2" \
  --set launch.gpus=2 --set sharding.backend=fsdp2 --set train.tokens_per_step=16384 --set optimizer.offload=false \
  --set $again.mode=full \
  --variant "all layers recomputed, prefetch 1, reshard" \
  --variant "preallocated; sharding.buffers=preallocated" \
  --variant "prefetch 0; sharding.prefetch=0" \
  --variant "prefetch 2; sharding.prefetch=2" \
  --variant "no reshard; sharding.reshard_after_forward=false" \
  --variant "half the layers recomputed; $again.layers=16" \
  --variant "selective; $again.mode=selective" \
  --variant "nothing recomputed; $again.mode=none" \
  --variant "nothing recomputed, preallocated; $again.mode=none; sharding.buffers=preallocated" \
  --variant "float8, gathered in it; $again.mode=none; $float8" \
  --variant "float8, gathered in bfloat16, preallocated; $again.mode=none; $float8; sharding.buffers=preallocated" \
  --variant "0.8B, nothing recomputed; $again.mode=none; model.path=builtin:qwen3.5-0.8b"
