#!/usr/bin/env bash
# Length and size on one GPU: the table of docs/performance.md. Kernels are compiled on the way, a minute or two a model.
#   tests/bench/sweep.sh TOKENIZER_FOLDER CHATS.jsonl.gz OTHER_TOKENIZER_FOLDER OUT.jsonl [MODEL ...]
# OTHER_TOKENIZER_FOLDER: of fewer words than Llama's 128,256. MODEL: of 27b, 9b, 4b, 0.8b, long; default: all.
set -euo pipefail
tokenizer=$1 chats=$2 other=$3 out=$4
shift 4
long=$(mktemp --suffix .jsonl.gz)
trap 'rm -f "$long"' EXIT
python3 tests/bench/long_rows.py "$chats" "$long"

pack() { echo "batching.tokens=$1; train.tokens_per_step=$1"; }

run() {  # --variant ... of one process
  python3 -m torch.distributed.run --nproc-per-node 1 tests/bench/variants.py tests/bench/random_weights.yaml \
    --steps 3 --json "$out" --set model.tokenizer="$tokenizer" --set data.train="$chats" "$@"
}

for model in ${*:-27b 9b 4b 0.8b long}; do
  variants=()
  case $model in
    long)
      for tokens in 2048 8192 32768; do
        for one in "9b" "llama"; do
          path=qwen3.5-9b words=$tokenizer
          if [ "$one" = llama ]; then path=llama-3.1-8b words=$other; fi
          variants+=(--variant "$one, long rows, $tokens; model.path=builtin:$path; model.tokenizer=$words; data.train=$long; optimizer.offload=false; $(pack $tokens)")
        done
      done
      variants+=(--variant "llama, chats, 8192; model.path=builtin:llama-3.1-8b; model.tokenizer=$other; optimizer.offload=false; $(pack 8192)") ;;
    27b) for tokens in 2048 4096 8192 16384 32768; do
        variants+=(--variant "27b, $tokens; model.path=builtin:qwen3.8-27b; $(pack $tokens)")
      done ;;
    *) for tokens in 2048 4096 8192 16384 32768; do
        variants+=(--variant "$model, $tokens; model.path=builtin:qwen3.5-$model; optimizer.offload=false; $(pack $tokens)")
      done ;;
  esac
  run "${variants[@]}"
done
