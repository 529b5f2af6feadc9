#!/bin/sh
# All tests that need a GPU, side by side, without test tools: sh benchmarks/speed/gpu_tests.sh OUT
# Results go to OUT/gpu-tests.log; the last lines say how each file ended.
export PYTHONPATH="$PWD/src:$PWD/tests${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
logs=$(mktemp -d)
for file in fast/test_forks_gpu fast/test_fast_gpu fast/test_layers_gpu fast/test_slots_gpu test_calls_gpu test_gpu; do
    name=$(basename "$file")
    (
        began=$(date +%s)
        timeout 200 python3 "tests/decoding/$file.py" >"$logs/$name.log" 2>&1
        echo "$name ended with $? after $(($(date +%s) - began)) s" >>"$logs/ends"
    ) &
done
wait
for log in "$logs"/*.log; do
    echo "== $(basename "$log" .log)"
    tail -c 6000 "$log"
done >"$1/gpu-tests.log"
cat "$logs/ends" >>"$1/gpu-tests.log"
cat "$logs/ends"
