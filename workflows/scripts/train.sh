#!/usr/bin/env bash
# One try to train a run:  train.sh ATTEMPT LOG STUDY RUN
#
# ATTEMPT counts from 1. A run that is told to stop (SIGTERM, Ctrl-C) saves itself and ends with code 75, as does one whose
# ranks hang, and one that is killed ends with a code above 128; the next try goes on from its last checkpoint. Any other
# error would only come again: further tries are refused, until somebody starts the job anew, with ATTEMPT 1.
#
# Each try's LOG is removed by the next. Of a try that fails a copy stays: LOG.ATTEMPT, or LOG.error if no other follows.
set -euo pipefail

attempt=$1 log=$2 study=$3 run=$4

if [ "$attempt" -eq 1 ]; then
    rm -f "$log".*
elif [ -e "$log.error" ]; then
    echo "Not tried again: the error is in $log.error"
    exit 2
fi

trap : TERM INT # this shell and tee wait for the process that saves
python -m benchmarks.cli train "$study" "$run" 2>&1 | (trap '' TERM INT; exec tee "$log") || {
    code=$?
    if [ "$code" -eq 75 ] || [ "$code" -gt 128 ]; then kept=$attempt; else kept=error; fi
    cp "$log" "$log.$kept"
    exit "$code"
}
