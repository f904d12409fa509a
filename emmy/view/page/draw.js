// Draws what is shown on the canvas.  Far out a card is a block and a row a bar, so that a frame costs what can be seen.

const canvas = document.getElementById("graph"), pen = canvas.getContext("2d");
const look = { x: 0, y: 0, scale: 1 };        // the point of the drawing at the canvas's corner, and pixels per unit
const TEXT = .42, BARS = .14;                 // the scales from which text and rows are drawn
const FEW = 2500;                             // so many edges are drawn as curves
let ink = {}, letter = 6.6, hovered = null, pending = false;

function theme() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["paper", "card", "ink", "dim", "line", "edge", "hit", "pick", "mono"]) ink[name] = style.getPropertyValue(`--${name}`).trim();
  pen.font = `11px ${ink.mono}`;
  letter = pen.measureText("0").width;
}

function redraw() {
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => { pending = false; draw(); });
}

function draw() {
  const ratio = devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const s = look.scale;
  pen.setTransform(1, 0, 0, 1, 0, 0);
  pen.fillStyle = ink.paper;
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.setTransform(ratio * s, 0, 0, ratio * s, -look.x * ratio * s, -look.y * ratio * s);
  const seen = { left: look.x, top: look.y, right: look.x + width / s, bottom: look.y + height / s };
  drawEdges(seen);
  for (const card of cards.values())
    if (card.x < seen.right && card.x + card.w > seen.left && card.y < seen.bottom && card.y + card.h > seen.top) drawCard(card);
  document.getElementById("scale").textContent = `${Math.round(s * 100)} %`;
}

function emphasised(e) {
  return hovered ? e.i === hovered.i && (hovered.row === null || e.row === hovered.row) || e.k === hovered.i && hovered.row === null
    : state.picked !== null && (e.i === state.picked || e.k === state.picked);
}

function drawEdges(seen) {
  const s = look.scale, groups = new Map();
  const near = edges.filter(e => e.right + 140 > seen.left && e.left - 140 < seen.right
    && Math.max(e.y1, e.y2) + 150 > seen.top && Math.min(e.y1, e.y2) - 150 < seen.bottom);
  for (const e of near) {
    const key = `${emphasised(e) ? 2 : e.kernels.length ? 1 : 0}:${e.kernels.length ? e.kernels[0] : -1}:${Number(e.memory)}`;
    groups.has(key) ? groups.get(key).push(e) : groups.set(key, [e]);
  }
  for (const key of [...groups.keys()].sort()) {
    const [strength, kernel, memory] = key.split(":").map(Number);
    if (!strength && s < BARS) continue;        // from far off only the extracted program is told apart
    pen.beginPath();
    for (const e of groups.get(key)) trace(e, near.length > FEW && strength < 2);
    pen.strokeStyle = pen.fillStyle = kernel >= 0 ? data.kernels[kernel].colour : strength ? ink.ink : ink.edge;
    pen.globalAlpha = (strength === 2 ? .95 : strength ? .75 : s < TEXT ? .35 : .7) * (searching() && strength < 2 ? .4 : 1);
    pen.lineWidth = (strength === 2 ? kernel < 0 ? 1.4 : 2 : strength ? 1.6 : 1) / Math.max(Math.min(s, 1), .3);
    pen.setLineDash(memory ? [7, 5] : []);
    pen.stroke();
    if (s < TEXT) continue;
    pen.beginPath();
    for (const e of groups.get(key)) { pen.moveTo(e.x2, e.y2); pen.lineTo(e.x2 - 3.5, e.y2 - 7); pen.lineTo(e.x2 + 3.5, e.y2 - 7); }
    pen.fill();
  }
  pen.setLineDash([]);
  pen.globalAlpha = 1;
}

// Down from the row, out on its side, and by way of the lanes; or straight, where so many are seen that the bends are not.
function trace(e, straight) {
  let x = e.x1, y = e.y1, side = e.side;
  pen.moveTo(x, y);
  for (const [to, top, bottom] of [...e.by, [e.x2, e.y2, e.y2]]) {
    const down = Math.min(Math.max(Math.abs(top - y) / 2, 20), 150);
    if (straight) pen.lineTo(to, top);
    else if (side) pen.bezierCurveTo(x + side * Math.min(Math.max(Math.abs(to - x) * .7, 18), 140), y, to, top - down, to, top);
    else pen.bezierCurveTo(x, y + down, to, top - down, to, top);
    if (bottom > top) pen.lineTo(to, bottom);
    x = to;
    y = bottom;
    side = 0;
  }
}

function drawCard(card) {
  const x = classes[card.i], s = look.scale, kernel = x.writtenBy.length ? data.kernels[x.writtenBy[0]] : null;
  const chosen = x.members.find(m => m.kernels.length), hit = hits.get(card.i);
  pen.globalAlpha = searching() && !hit ? .28 : 1;
  pen.fillStyle = ink.card;
  box(card.x, card.y, card.w, card.h, s < BARS ? 0 : 7);
  pen.fill();
  if (kernel) {
    pen.fillStyle = kernel.colour;
    box(card.x, card.y, card.w, M.head, s < BARS ? 0 : [7, 7, 0, 0]);
    pen.fill();
  }
  const colour = chosen ? data.kernels[chosen.kernels[0]].colour : ink.line;
  if (s < BARS) {
    pen.fillStyle = hit ? "#f2b705" : colour;
    pen.fillRect(card.x, card.y, card.w, card.h);
  } else drawRows(card, hit);
  pen.strokeStyle = state.picked === card.i ? ink.pick : colour;
  pen.lineWidth = (state.picked === card.i ? 2.5 : chosen ? 1.5 : 1) / Math.max(Math.min(s, 1), .4);
  box(card.x, card.y, card.w, card.h, s < BARS ? 0 : 7);
  pen.stroke();
  if (s >= TEXT) drawHead(card, kernel);
  pen.globalAlpha = 1;
}

function drawHead(card, kernel) {
  const x = classes[card.i], y = card.y + M.head / 2 + 4;
  pen.font = `600 11.5px ${ink.mono}`;
  pen.fillStyle = kernel ? "#fff" : ink.ink;
  const most = Math.floor((card.w - 24) / letter), name = clip(`%${x.key}${kernel ? `  ${x.keeps.find(t => kernel.writes.includes(t))}` : ""}`, most - 8);
  pen.fillText(name, card.x + 10, y);
  pen.font = `11px ${ink.mono}`;
  pen.fillStyle = kernel ? "rgba(255,255,255,.85)" : ink.dim;
  const about = clip(`${x.element}[${x.axes.join(" ")}]`, most - name.length - 2);
  pen.fillText(about, card.x + card.w - 10 - about.length * letter, y);
}

function drawRows(card, hit) {
  const x = classes[card.i], text = look.scale >= TEXT;
  card.rows.forEach((row, r) => {
    const m = x.members[row], top = card.y + M.head + M.row * r, base = top + M.row / 2 + 4;
    if (hit && hit.has(row)) {
      pen.fillStyle = ink.hit;
      pen.fillRect(card.x + 1, top, card.w - 2, M.row);
    }
    m.kernels.forEach((k, n) => {
      pen.fillStyle = data.kernels[k].colour;
      pen.fillRect(card.x + 1 + 4 * n, top + 1, 3, M.row - 2);
    });
    if (m.kernels.length && !(hit && hit.has(row))) {
      const alpha = pen.globalAlpha;
      pen.globalAlpha = alpha * .13;
      pen.fillRect(card.x + 1, top, card.w - 2, M.row);
      pen.globalAlpha = alpha;
    }
    const cut = m.kernels.length && writer.has(m.tensor), left = card.x + 12 + 4 * Math.max(0, m.kernels.length - 1) + (cut ? 13 : 0);
    if (cut) {
      pen.fillStyle = data.kernels[writer.get(m.tensor)].colour;
      box(left - 12, top + M.row / 2 - 4, 8, 8, 2);
      pen.fill();
    }
    pen.fillStyle = m.kernels.length || hit && hit.has(row) ? ink.ink : ink.dim;
    if (!text) { pen.fillRect(left, top + 7, Math.min(m.text.length * letter, card.w - 60), 4); return; }
    pen.font = `11px ${ink.mono}`;
    pen.fillText(clip(m.text, Math.floor((card.x + card.w - 14 - left) / letter) - m.cost.length - 1), left, base);
    pen.fillStyle = ink.dim;
    pen.fillText(m.cost, card.x + card.w - 10 - m.cost.length * letter, base);
  });
  if (card.more > 0 && text) {
    const top = card.y + M.head + M.row * card.rows.length, hidden = hit && [...hit].some(k => !card.rows.includes(k));
    if (hidden) {
      pen.fillStyle = ink.hit;
      pen.fillRect(card.x + 1, top, card.w - 2, M.row);
    }
    pen.fillStyle = hidden ? ink.ink : ink.dim;
    pen.font = `italic 11px ${ink.mono}`;
    pen.fillText(`+ ${card.more} more member${card.more > 1 ? "s" : ""}`, card.x + 12, top + M.row / 2 + 4);
  }
}

function box(x, y, w, h, radius) {
  pen.beginPath();
  radius ? pen.roundRect(x, y, w, h, radius) : pen.rect(x, y, w, h);
}

function clip(text, most) { return text.length <= most ? text : `${text.slice(0, Math.max(most - 1, 1))}…`; }

// What lies under a point of the canvas: {i, row} with row null in the head and -1 on the line of further members; null for nothing.
function under(px, py) {
  const x = look.x + px / look.scale, y = look.y + py / look.scale;
  for (const card of cards.values()) {
    if (x < card.x || x > card.x + card.w || y < card.y || y > card.y + card.h) continue;
    const r = Math.floor((y - card.y - M.head) / M.row);
    return { i: card.i, row: r < 0 ? null : r < card.rows.length ? card.rows[r] : card.more > 0 ? -1 : null };
  }
  return null;
}

function fit(chosen = [...cards.values()], least = 0) {
  if (!chosen.length) return;
  const left = Math.min(...chosen.map(c => c.x)), right = Math.max(...chosen.map(c => c.x + c.w));
  const top = Math.min(...chosen.map(c => c.y)), bottom = Math.max(...chosen.map(c => c.y + c.h)), w = canvas.clientWidth, h = canvas.clientHeight;
  const wanted = Math.min(1.15, (w - 60) / (right - left), (h - 110) / (bottom - top));
  look.scale = Math.max(wanted, least, .02);
  const first = wanted < least && cards.get(roots[0]);        // what does not fit is shown from its first result
  look.x = (first ? first.x + first.w / 2 : (left + right) / 2) - w / 2 / look.scale;
  look.y = first ? first.y - 70 / look.scale : (top + bottom) / 2 - (h / 2 + 10) / look.scale;
  redraw();
}

function centre(i) {
  const card = cards.get(i);
  look.scale = Math.max(look.scale, .8);
  look.x = card.x + card.w / 2 - canvas.clientWidth / 2 / look.scale;
  look.y = card.y + card.h / 2 - canvas.clientHeight / 2 / look.scale;
  redraw();
}
