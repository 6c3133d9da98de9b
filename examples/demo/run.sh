#!/usr/bin/env bash
# What `make demo` shows after the build: questions before, fine-tuning on two ranks, questions after.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

strata=${STRATA:-build/release/strata}
base=examples/demo/base
output=outputs/demo
# None of these facts is among the pirate's lessons: what changes is the manner.
questions=("What is the capital of France?" "What colour is the sky?" "What is a compass for?")

ask() { "$strata" chat --model_name_or_path "$base" --prompt "$1" --max_new_tokens 40 "${@:2}"; }

echo "Strata demo: a 1.8M-parameter Llama learns to answer like a pirate (LoRA, two ranks)"
before=()
for question in "${questions[@]}"; do
  before+=("$(ask "$question")")
done

rm -rf "$output"
"$strata" launch --num_processes 2 --cpu sft --config examples/demo/pirate.yaml --output_dir "$output"

echo
for i in "${!questions[@]}"; do
  printf 'question  %s\n  before  %s\n   after  %s\n' "${questions[i]}" "${before[i]}" \
    "$(ask "${questions[i]}" --adapter_name_or_path "$output")"
done

cat <<END

adapter   $output/adapter_model.safetensors (loads in PEFT as it is)
metrics   $output/metrics.jsonl
report    $output/report.html (open it in a browser)
ask more  $strata chat --model_name_or_path $base --adapter_name_or_path $output
END
