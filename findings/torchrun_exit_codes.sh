#!/usr/bin/env bash
# torchrun of torch 2.15.0 has one exit code for every failure: whatever code its ranks end with, its own is 1.
#
# Seen: two ranks that both end with 75, the code for "try again later" of sysexits.h, and a rank that ends with 3 beside
# one that ends with 0: torchrun ends with 1 in both. The rank's own code stands in the table on standard error alone
# ("exitcode  : 75"). With `--max-restarts 1` the ranks are started again after 75 as after 3, since torchrun knows no
# code for which a restart is of no use. So rules of a cluster that go by exit codes, such as a `podFailurePolicy` of
# Kubernetes or `recover_on_exit_codes` of SkyPilot, cannot tell a wrong config from an eviction where the container's
# command is torchrun.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.15.0 numpy

cat > "$folder/rank.py" <<'PYTHON'
import os
import sys
from pathlib import Path

rank = int(os.environ["RANK"])
Path(sys.argv[2], f"start-{os.environ['TORCHELASTIC_RESTART_COUNT']}-{rank}").touch()
sys.exit(int(sys.argv[1].split(",")[rank]))
PYTHON

run() {  # run CODES RESTARTS: print torchrun's exit code, and how often rank 0 began
    mkdir -p "$folder/starts"
    local code=0
    CUDA_VISIBLE_DEVICES= "$folder/venv/bin/python" -m torch.distributed.run --standalone --nproc-per-node 2 \
        --max-restarts "$2" "$folder/rank.py" "$1" "$folder/starts" 2> "$folder/errors" || code=$?
    echo "$code $(find "$folder/starts" -name 'start-*-0' | wc -l)"
    rm -r "$folder/starts"
}

both=$(run 75,75 0)
named=$(grep -c 'exitcode  : 75' "$folder/errors")
one=$(run 0,3 0)
again=$(run 75,75 1)
echo "both ranks 75: torchrun $both; one rank 3: torchrun $one; both 75 with a restart: torchrun $again"
[ "$both" = "1 1" ]
[ "$named" -ge 1 ]
[ "$one" = "1 1" ]
[ "$again" = "1 2" ]
