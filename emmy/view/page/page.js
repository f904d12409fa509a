// What the reader does: move, zoom, pick, open, search.  The address's fragment keeps the search, the class and the extent of what is shown.

function refresh(again = true) {
  const anchor = state.picked !== null && cards.get(state.picked);
  if (again) {
    arrange();
    const now = anchor && cards.get(state.picked);
    if (now) { look.x += now.x - anchor.x; look.y += now.y - anchor.y; }     // what was picked stays where it was
  }
  showFound();
  showClass();
  $("all").ariaPressed = state.all;
  keepAddress();
  redraw();
}

function search(change) {
  Object.assign(state, change);
  match();
  showKernels();
  showRules();
  refresh(false);
}

function pickRule(rule) {
  search({ rule: state.rule === rule ? null : rule });
  if (state.rule !== null) $("rule-list").open = true;
}

function pickKernel(kernel) {
  search({ kernel: state.kernel === kernel ? null : kernel });
  if (state.kernel !== null) fit([...hits.keys()].map(i => cards.get(i)));
}

function pick(i) {
  state.picked = i;
  refresh(false);
  if (i !== null) $("class").scrollIntoView({ block: "nearest" });
}

function visit(i) {
  state.picked = i;
  reveal(i);
  refresh(false);
  centre(i);
}

function step(by) {
  if (matches.length) stepTo(at < 0 ? (by > 0 ? 0 : matches.length - 1) : (at + by + matches.length) % matches.length);
}

function stepTo(n) {
  const [i, k] = matches[n];
  at = n;
  reveal(i);
  if (!rows(i).includes(k)) { state.open.add(i); arrange(); }
  visit(i);
}

function toggleOpen(i) {
  state.open.has(i) ? state.open.delete(i) : state.open.add(i);
  state.picked = i;
  refresh();
}

function showAll(all) {
  state.all = all;
  if (!all) { state.open.clear(); state.extra.clear(); }
  refresh();
  if (state.picked !== null && cards.has(state.picked)) return;
  state.picked = null;
  refresh(false);
  fit();
}

function keepAddress() {
  const words = new URLSearchParams();
  if (state.query.trim()) words.set("q", state.query.trim());
  if (state.rule !== null) words.set("rule", state.rule);
  if (state.picked !== null) words.set("class", classes[state.picked].key);
  if (state.all) words.set("all", "1");
  history.replaceState(null, "", `#${words}`);
}

function readAddress() {
  const words = new URLSearchParams(location.hash.slice(1)), rule = words.get("rule"), picked = rankOf.get(Number(words.get("class") ?? NaN));
  state.all = words.get("all") === "1";
  $("query").value = words.get("q") || "";
  arrange();
  search({ query: $("query").value, rule: data.rules.some(r => r.name === rule) ? rule : null });
  fit(undefined, state.all ? 0 : .75);      // what does not fit is shown from the results down, as large as it can be read
  if (picked !== undefined) visit(picked);
}

function listen() {
  let drag = null;
  const spot = e => { const r = canvas.getBoundingClientRect(); return [e.clientX - r.left, e.clientY - r.top]; };
  canvas.addEventListener("pointerdown", e => {
    drag = { x: e.clientX, y: e.clientY, moved: false };
    canvas.setPointerCapture(e.pointerId);
  });
  canvas.addEventListener("pointermove", e => {
    if (drag) {
      if (!drag.moved && Math.hypot(e.clientX - drag.x, e.clientY - drag.y) < 4) return;
      canvas.className = "dragging";
      look.x -= (e.clientX - drag.x) / look.scale;
      look.y -= (e.clientY - drag.y) / look.scale;
      drag = { x: e.clientX, y: e.clientY, moved: true };
      redraw();
      return;
    }
    const found = under(...spot(e));
    canvas.className = found ? "over" : "";
    if (found?.i !== hovered?.i || found?.row !== hovered?.row) { hovered = found; redraw(); }
  });
  canvas.addEventListener("pointerup", e => {
    const clicked = drag && !drag.moved;
    drag = null;
    canvas.className = "";
    if (!clicked) return;
    const found = under(...spot(e));
    if (found && found.row === -1) toggleOpen(found.i); else pick(found && found.i);
  });
  canvas.addEventListener("pointerleave", () => { if (hovered) { hovered = null; redraw(); } });
  canvas.addEventListener("dblclick", e => { const found = under(...spot(e)); if (found && !state.all) toggleOpen(found.i); });
  canvas.addEventListener("wheel", e => {
    e.preventDefault();
    const [px, py] = spot(e), before = look.scale;
    look.scale = Math.min(Math.max(before * Math.exp(-e.deltaY * (e.ctrlKey ? .01 : .0015)), .02), 4);
    look.x += px / before - px / look.scale;
    look.y += py / before - py / look.scale;
    redraw();
  }, { passive: false });
  $("query").addEventListener("input", () => search({ query: $("query").value }));
  $("query").addEventListener("keydown", e => { if (e.key === "Enter") step(e.shiftKey ? -1 : 1); });
  $("next").onclick = () => step(1);
  $("before").onclick = () => step(-1);
  $("fit").onclick = () => fit();
  $("all").onclick = () => showAll(!state.all);
  $("close").onclick = () => showAll(false);
  addEventListener("keydown", e => {
    if (e.key === "Escape") { $("query").value = ""; search({ query: "", rule: null, kernel: null }); canvas.focus(); }
    if (e.target === $("query") || e.ctrlKey || e.metaKey || e.altKey) return;
    if (e.key === "/") { e.preventDefault(); $("query").focus(); }
    if (e.key === "f") fit();
    if (e.key === "a") showAll(!state.all);
  });
  addEventListener("resize", redraw);
  addEventListener("hashchange", readAddress);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { theme(); redraw(); });
}

$("title").textContent = data.title;
$("stats").textContent = [plural(classes.length, "class"), plural(data.members, "member"), plural(data.kernels.length, "kernel"),
  `predicted ${data.time}`, ...data.settings].join(" · ");
theme();
listen();
readAddress();
