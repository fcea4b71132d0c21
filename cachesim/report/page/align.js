// --- two lists of events side by side

/** What makes two events the same: all they say but bytes; of routine ones the name. */
const keyOf = (event) =>
  toneOf(event) === "quiet" ? event.event : JSON.stringify({ ...event, size: 0, size_companion: 0, task: 0, sentence: "" });

/** Events of both lists in pairs, the most alike that keep their order; null beside lone ones. */
function aligned(ours, theirs) {
  if (!theirs) return ours.map((_, i) => [i, null]);
  if (ours.length * theirs.length > 400000) {
    return Array.from({ length: Math.max(ours.length, theirs.length) }, (_, i) => [i < ours.length ? i : null, i < theirs.length ? i : null]);
  }
  const [a, b] = [ours.map(keyOf), theirs.map(keyOf)];
  const worth = (i, j) => (a[i] === b[j] ? 3 : ours[i].event === theirs[j].event ? 2 : -9);
  const best = Array.from({ length: a.length + 1 }, () => new Int32Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      best[i][j] = Math.max(worth(i, j) + best[i + 1][j + 1], best[i + 1][j], best[i][j + 1]);
    }
  }
  const pairs = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && best[i][j] === worth(i, j) + best[i + 1][j + 1]) pairs.push([i++, j++]);
    else if (j === b.length || (i < a.length && best[i + 1][j] >= best[i][j + 1])) pairs.push([i++, null]);
    else pairs.push([null, j++]);
  }
  return pairs;
}

/** Whether two profiles part at a pair of events of a step. */
function parts(step, [ours, theirs]) {
  const [one, other] = shownRuns();
  if (ours === null && theirs === null) return one.steps[step].error !== other.steps[step].error;
  if (ours === null || theirs === null) return true;
  return keyOf(one.steps[step].events[ours]) !== keyOf(other.steps[step].events[theirs]);
}
