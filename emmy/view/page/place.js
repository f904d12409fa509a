"use strict";
// Where the classes on the screen lie: the procedure of emmy/view/layout.py, on the classes, rows and edges that are shown.
// A class is known by its place in data.classes, which is its rank: an edge that leads to a greater one leads forward.

const SWEEPS = 12, STRAIGHT = 8;

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

// height: of each class by rank, ascending; edges: [source, target, weight].  Upper left corners, layers, and lanes by "target,layer".
function place(height, edges, width, lane, apart, gap) {
  const classes = [...height.keys()], rows = layers(classes, edges), layer = new Map(), size = new Map(), near = new Map();
  const lanes = new Map(), middle = new Map();
  let fresh = 1 + Math.max(-1, ...classes);
  rows.forEach((row, n) => row.forEach(c => layer.set(c, n)));
  for (const c of classes) { size.set(c, width); near.set(c, []); }
  const join = (a, b, weight) => { near.get(a).push([b, weight]); near.get(b).push([a, weight]); };
  const into = (target, n, weight) => {
    let last = target;
    for (let m = layer.get(target) - 1; m >= n; m--) {
      const key = `${target},${m}`;
      if (!lanes.has(key)) {
        const made = fresh++;
        lanes.set(key, made);
        size.set(made, lane);
        near.set(made, []);
        rows[m].push(made);
        join(made, last, last === target ? weight : weight * STRAIGHT);
      }
      last = lanes.get(key);
    }
    return last;
  };
  for (const [source, target, weight] of edges) {
    const passes = weight > 1 && layer.get(source) < layer.get(target);
    join(source, passes ? into(target, layer.get(source) + 1, weight) : target, weight);
  }
  const settle = (row, otherwise) => settleRow(row, new Map(row.map(c => [c, mean(near.get(c), middle, otherwise(c))])), size, apart, middle);
  for (const row of rows) settle(row, () => 0);
  for (let sweep = 0; sweep < SWEEPS; sweep++)
    for (const row of sweep % 2 ? rows : [...rows].reverse()) settle(row, c => middle.get(c));
  const tops = [0];
  for (const row of rows) tops.push(tops.at(-1) + Math.max(...row.map(c => height.get(c) ?? 0)) + gap);
  return {
    corner: c => [middle.get(c) - width / 2, tops[layer.get(c)]],
    between: (source, target) => {
      const by = [];
      for (let n = layer.get(source) + 1; n < layer.get(target); n++) {
        const lane = lanes.get(`${target},${n}`);
        if (lane === undefined) return [];
        by.push([middle.get(lane), tops[n], tops[n + 1] - gap]);
      }
      return by;
    },
  };
}

function mean(near, middle, otherwise) {
  let total = 0, sum = 0;
  for (const [c, weight] of near)
    if (middle.has(c)) { total += weight; sum += middle.get(c) * weight; }
  return total ? sum / total : otherwise;
}

function settleRow(row, wanted, size, apart, middle) {
  row.sort((a, b) => wanted.get(a) - wanted.get(b));
  const blocks = [], offset = [];
  row.forEach((c, k) => {
    offset.push(k ? offset[k - 1] + (size.get(row[k - 1]) + size.get(c)) / 2 + apart : 0);
    let total = wanted.get(c) - offset[k], count = 1;
    while (blocks.length && blocks.at(-1)[0] * count >= total * blocks.at(-1)[1]) {
      const [before, others] = blocks.pop();
      total += before;
      count += others;
    }
    blocks.push([total, count]);
  });
  let k = 0;
  for (const [total, count] of blocks)
    for (const end = k + count; k < end; k++) middle.set(row[k], total / count + offset[k]);
}
