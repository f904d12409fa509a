// What is shown of the graph: which classes and rows are open, what matches, where the cards lie.

const data = JSON.parse(document.getElementById("data").textContent);
const M = data.metrics, classes = data.classes;
const rankOf = new Map(classes.map((x, i) => [x.key, i]));
const users = classes.map(() => []);
const writer = new Map(data.kernels.flatMap((k, n) => k.writes.map(t => [t, n])));      // the kernel that writes a tensor
classes.forEach((x, i) => {
  x.members.forEach(m => { m.kids = m.kids.map(k => rankOf.get(k)); });
  for (const k of new Set(x.members.flatMap(m => m.kids))) users[k].push(i);
  x.words = x.members.map(m => `%${x.key} ${x.element} ${m.text} ${x.keeps.join(" ")}`.toLowerCase());
  x.writtenBy = x.keeps.map(t => writer.get(t)).filter(n => n !== undefined);
});
const roots = [...new Set([...data.outputs.map(([, c]) => rankOf.get(c)), ...data.kernels.flatMap(k => k.roots.map(c => rankOf.get(c)))])];

const state = { open: new Set(), extra: new Set(), all: false, picked: null, query: "", rule: null, kernel: null };
let cards = new Map(), edges = [], matches = [], hits = new Map(), at = -1;

// The rows of a class's card: all of its members if it is open, else the chosen ones, or the canonical one where none is chosen.
function rows(i) {
  const members = classes[i].members, every = members.map((_, k) => k);
  if (state.all || state.open.has(i)) return every;
  const chosen = every.filter(k => members[k].kernels.length);
  return chosen.length ? chosen : [classes[i].form];
}

// The classes on the screen: the extracted program, and below an open class whatever its members are made of.
function visible() {
  if (state.all) return classes.map((_, i) => i);
  const seen = new Set(), stack = [...roots, ...state.extra];
  while (stack.length) {
    const i = stack.pop();
    if (seen.has(i)) continue;
    seen.add(i);
    const members = classes[i].members;
    for (const m of state.open.has(i) ? members : members.filter(m => m.kernels.length)) stack.push(...below(i, m).map(([k]) => k));
  }
  return [...seen].sort((a, b) => a - b);
}

// What a row leads to, as [class, whether through memory]: its operands, and the kernel that wrote what it loads.
function below(i, m) {
  const by = m.kernels.length ? data.kernels[writer.get(m.tensor)] : undefined;
  const kept = by ? rankOf.get(by.roots[by.writes.indexOf(m.tensor)]) : i;
  return [...[...new Set(m.kids)].map(k => [k, false]), ...kept === i ? [] : [[kept, true]]];
}

// Lays the visible classes out.  A card is {i, rows, more, x, y, w, h}, an edge {i, row, k, kernels, memory, side, x1, y1, by, x2, y2}:
// from the bottom of a card that shows one row (side 0), else from the left (-1) or right (1) of its row, down the lanes `by`, each
// [middle, top, bottom], to the top of the child.
function arrange() {
  const shown = visible(), heights = new Map(), weights = new Map(), links = [];
  const on = new Set(shown), rowsOf = new Map(shown.map(i => [i, rows(i)]));
  for (const [i, mine] of rowsOf) {
    heights.set(i, M.head + M.row * (mine.length + (mine.length < classes[i].members.length)) + M.foot);
    for (const row of mine) {
      const m = classes[i].members[row];
      for (const [k, memory] of below(i, m).filter(([k]) => on.has(k))) {
        const key = i * classes.length + k;
        weights.set(key, Math.max(weights.get(key) || 0, m.kernels.length ? M.chosen : M.other));
        links.push({ i, row, k, kernels: m.kernels, memory });
      }
    }
  }
  const ends = [...weights].map(([key, weight]) => [Math.floor(key / classes.length), key % classes.length, weight]);
  const places = place(heights, ends, M.width, M.lane, M.apart, M.gap);
  cards = new Map(shown.map(i => {
    const [x, y] = places.corner(i), mine = rowsOf.get(i);
    return [i, { i, rows: mine, more: classes[i].members.length - mine.length, x, y, w: M.width, h: heights.get(i) }];
  }));
  edges = links.map(link => {
    const from = cards.get(link.i), to = cards.get(link.k), by = places.between(link.i, link.k);
    const inside = (x, card) => Math.min(Math.max(x, card.x + 16), card.x + card.w - 16), first = by.length ? by[0][0] : to.x + to.w / 2;
    const side = from.rows.length === 1 ? 0 : first >= from.x + from.w / 2 ? 1 : -1;
    const x1 = side ? from.x + (side > 0 ? from.w : 0) : inside(first, from);
    const y1 = side ? from.y + M.head + M.row * (from.rows.indexOf(link.row) + .5) : from.y + from.h;
    const across = [x1, to.x + to.w / 2, ...by.map(lane => lane[0])], x2 = inside(by.length ? by.at(-1)[0] : x1 + side * 22, to);
    return { ...link, side, x1, y1, by, x2, y2: to.y, left: Math.min(...across, x2), right: Math.max(...across, x2) };
  });
}

// The members that the search, the rule and the kernel pick, in the order of the drawing; all three must hold of a member.
function match() {
  const words = state.query.toLowerCase().split(/\s+/).filter(Boolean);
  matches = [];
  hits = new Map();
  at = -1;
  if (!searching()) return;
  classes.forEach((x, i) => x.members.forEach((m, k) => {
    const fits = words.every(w => /^%\d+$/.test(w) ? w === `%${x.key}` : x.words[k].includes(w))
      && (state.rule === null || m.rules.includes(state.rule)) && (state.kernel === null || m.kernels.includes(state.kernel));
    if (!fits) return;
    matches.push([i, k]);
    hits.has(i) ? hits.get(i).add(k) : hits.set(i, new Set([k]));
  }));
}

function searching() { return Boolean(state.query.trim()) || state.rule !== null || state.kernel !== null; }

// Opens the classes on the shortest way from what is shown to class i; one that no result is made of is shown by itself.
function reveal(i) {
  if (cards.has(i)) return;
  const from = new Map([[i, null]]), queue = [i];
  for (const c of queue) {
    if (cards.has(c)) {
      for (let step = from.get(c), user = c; user !== null && user !== i; user = step, step = from.get(step)) state.open.add(user);
      arrange();
      return;
    }
    for (const user of users[c]) if (!from.has(user)) { from.set(user, c); queue.push(user); }
  }
  state.extra.add(i);
  arrange();
}

// The canonical form of a class, a line a class, operands first.
function form(i) {
  const order = [], done = new Set(), stack = [[i, false]];
  while (stack.length) {
    const [c, ready] = stack.pop();
    if (ready) { order.push(c); continue; }
    if (done.has(c)) continue;
    done.add(c);
    stack.push([c, true], ...classes[c].members[classes[c].form].kids.map(k => [k, false]).reverse());
  }
  return order;
}
