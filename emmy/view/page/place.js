"use strict";
// Where the classes on the screen lie: the procedure of emmy/view/layout.py, on the classes, rows and edges that are shown.
// A class is known by its place in data.classes, which is its rank: an edge that leads to a greater one leads forward.

const SWEEPS = 12;

function layers(classes, edges) {
  const depth = new Map(classes.map(c => [c, 0])), below = new Map(), found = [];
  for (const [source, target] of edges)
    if (source < target) below.has(source) ? below.get(source).push(target) : below.set(source, [target]);
  for (const c of classes) {
    for (const k of below.get(c) || []) depth.set(k, Math.max(depth.get(k), depth.get(c) + 1));
    while (found.length <= depth.get(c)) found.push([]);
    found[depth.get(c)].push(c);
  }
  return found;
}

// height: of each class by rank, ascending; edges: [source, target, weight].  A map from class to [left, top].
function place(height, edges, pitch, gap) {
  const rows = layers([...height.keys()], edges), near = new Map([...height.keys()].map(c => [c, []])), left = new Map();
  for (const [source, target, weight] of edges) {
    near.get(source).push([target, weight]);
    near.get(target).push([source, weight]);
  }
  const settle = (row, otherwise) => settleRow(row, new Map(row.map(c => [c, mean(near.get(c), left, otherwise(c))])), pitch, left);
  for (const row of rows) settle(row, () => 0);
  for (let sweep = 0; sweep < SWEEPS; sweep++)
    for (const row of sweep % 2 ? rows : [...rows].reverse()) settle(row, c => left.get(c));
  const placed = new Map();
  let top = 0;
  for (const row of rows) {
    for (const c of row) placed.set(c, [left.get(c), top]);
    top += Math.max(...row.map(c => height.get(c))) + gap;
  }
  return placed;
}

function mean(near, left, otherwise) {
  let total = 0, sum = 0;
  for (const [c, weight] of near)
    if (left.has(c)) { total += weight; sum += left.get(c) * weight; }
  return total ? sum / total : otherwise;
}

function settleRow(row, wanted, pitch, left) {
  row.sort((a, b) => wanted.get(a) - wanted.get(b));
  const blocks = [];
  row.forEach((c, k) => {
    let total = wanted.get(c) - k * pitch, count = 1;
    while (blocks.length && blocks.at(-1)[0] * count >= total * blocks.at(-1)[1]) {
      const [before, others] = blocks.pop();
      total += before;
      count += others;
    }
    blocks.push([total, count]);
  });
  let k = 0;
  for (const [total, count] of blocks)
    for (const end = k + count; k < end; k++) left.set(row[k], total / count + k * pitch);
}
