#!/bin/bash
# usage: check.sh [WORDS]     one line a claim of properties.txt (that has WORDS in it): what was
# expected, what came out, states, seconds. Status 0: all as expected. Needs spin and gcc.
# LIMIT: seconds a claim may take (300); JOBS: how many are searched at a time (2).
cd "$(dirname "$0")" || exit 2
export TOP=$PWD LIMIT=${LIMIT:-300}
WORK=$(mktemp -d) && export WORK || exit 2
trap 'rm -rf "$WORK"' EXIT

one() { # name|holds or FAILS|flags of cpp
  local name want flags opt=-O1 on='' s got left err states seconds mark=ok
  IFS='|' read -r name want flags <<<"$1"
  cd "$(mktemp -d "$WORK/XXXX")" || return
  eval "set -- $flags"
  case "$want $flags" in FAILS* | *TERMS=1*) opt=-O0 ;; esac # compiling takes longer than the search
  for s in 1 2 3 4 5 6 7 8 9 10 11 12; do
    case " $* " in *" -DS$s=1 "*) ;; *) on="$on -DS$s=0" ;; esac
  done
  # shellcheck disable=SC2086
  if ! { cpp -P $on "$@" "$TOP/protocol.pml" >protocol.pml && spin -a protocol.pml &&
    gcc $opt -w -DSAFETY -DCOLLAPSE -DMEMLIM=6000 -o pan pan.c; } >log 2>&1; then
    printf 'UNEXPECTED %s: %s\n' "$name" "$(head -1 log)"
    return
  fi
  timeout "$LIMIT" ./pan -m200000 -w22 >out 2>&1
  left=$?
  err=$(sed -n 's/.*errors: //p' out)
  states=$(sed -n 's/ *\([0-9.e+]*\) states, stored.*/\1/p' out)
  seconds=$(sed -n 's/.*elapsed time \(.*\) seconds/\1/p' out)
  if grep -q 'max search depth too small' out; then got=DEPTH
  elif [ "$left" = 124 ]; then got=timeout
  elif [ "$err" = 0 ]; then got=holds
  elif grep -q '^pan:.*invalid end' out; then got=DEADLOCK
  elif grep -q '^pan:.*assertion violated' out; then got=FAILS
  else got=ERROR; fi
  [ "$got" = "$want" ] || mark=UNEXPECTED
  printf '%-10s %-80s expected %-5s got %-8s %9s states %6s s\n' \
    "$mark" "$name" "$want" "$got" "$states" "$seconds"
}
export -f one

grep -F -- "${1:-|}" properties.txt | tr '\n' '\0' |
  xargs -0 -r -n1 -P"${JOBS:-2}" bash -c 'one "$0"' | tee "$WORK/lines"
[ -s "$WORK/lines" ] && ! grep -qv '^ok' "$WORK/lines"
