#!/usr/bin/env bash
# report_newest.sh ENGINE FILE: an issue with what `cachesim real ENGINE --newest` found to be new.
#
# The title is the line that says so. The text is what follows it: the smallest workload that shows
# the difference, and the rule fields that explain it. Before it are tables of what was played, which
# are left out where there is such a line. One issue for each title.
set -euo pipefail
engine=$1 found=$2
title=$(grep -m1 ' is NOT as ' "$found" || echo "$engine: the newest release could not be compared, or differs")
{
  echo '```text'
  if grep -q ' is NOT as ' "$found"; then sed -n '/ is NOT as /,$p' "$found"; else cat "$found"; fi | { head -c 60000; cat > /dev/null; }
  echo '```'
  echo
  echo "Seen by \`make newest-$engine\`."
} > body.md
if gh issue list --state open --limit 1000 --json title --jq '.[].title' | grep -qxF -- "$title"; then
  echo "there is an open issue: $title"
else
  gh issue create --title "$title" --body-file body.md
fi
