// The panel: kernels, rules, and the class that is picked.

const $ = id => document.getElementById(id);

// An element with properties and children; text is always text.
function el(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children.filter(c => c !== null));
  return made;
}

function plural(n, word) { return `${n.toLocaleString("en")} ${word}${n === 1 ? "" : /(s|ch)$/.test(word) ? "es" : "s"}`; }

function swatch(kernel) {
  const made = el("span", { className: "swatch", title: data.kernels[kernel].name });
  made.style.background = data.kernels[kernel].colour;
  return made;
}

function link(i) { return el("a", { href: `#class=${classes[i].key}`, textContent: `%${classes[i].key}`, onclick: e => { e.preventDefault(); visit(i); } }); }

// A member's text with its operands as links.
function linked(m) {
  const known = new Map(m.kids.map(k => [`%${classes[k].key}`, k]));
  return m.text.split(/(%\d+)/).map(piece => known.has(piece) ? link(known.get(piece)) : piece);
}

function bounds(x) { return x.axes.map(a => el("span", { className: "chip" }, `${a} < ${data.extents[a]}`)); }

function showClass() {
  const place = $("class"), i = state.picked;
  if (i === null) {
    place.replaceChildren(el("p", {}, "Click a class to see its members, what each costs, the rules that made it, and its canonical form."));
    return;
  }
  const x = classes[i], hit = hits.get(i), isOpen = state.all || state.open.has(i);
  const table = el("table", {}, ...x.members.map((m, k) => el("tr", { className: hit && hit.has(k) ? "hit" : "" },
    el("td", {}, ...m.kernels.map(swatch)),
    el("td", {}, ...linked(m), el("div", { className: "chips" }, ...k === x.form ? [el("span", { className: "chip" }, "canonical")] : [],
      ...m.rules.map(rule => el("button", { className: "chip", title: "Every member that this rule made", onclick: () => pickRule(rule) }, rule)))),
    el("td", {}, m.cost))));
  const written = x.keeps.map(t => writer.has(t)
    ? el("p", {}, swatch(writer.get(t)), ` kept in memory as ${t}, written by ${data.kernels[writer.get(t)].name}`) : el("p", {}, `may be kept in memory as ${t}`));
  const toggle = state.all ? null : el("button", { onclick: () => toggleOpen(i) }, isOpen ? "Close" : "Open");
  place.replaceChildren(
    el("h2", {}, `%${x.key}`, el("span", { className: "chip" }, x.element), toggle),
    el("div", { className: "chips" }, ...bounds(x)), ...x.axes.length ? [] : [el("p", {}, "depends on no axis")],
    ...data.outputs.filter(([, c]) => c === x.key).map(([name]) => el("p", {}, `the result ${name}`)), ...written,
    el("h3", {}, plural(x.members.length, "member")), table,
    el("h3", {}, "Canonical form"),
    el("pre", {}, ...form(i).flatMap(c => [link(c), " = ", ...linked(classes[c].members[classes[c].form]), "\n"])),
    el("h3", {}, "Used by"), el("div", { className: "chips" }, ...users[i].length ? users[i].map(link) : ["no class"]));
}

function showKernels() {
  $("kernel-count").textContent = data.kernels.length;
  $("kernels").replaceChildren(...data.kernels.map((k, n) => {
    const button = el("button", { ariaPressed: state.kernel === n, title: "Mark the body of this kernel", onclick: () => pickKernel(n) },
      swatch(n), el("span", { className: "name" }, k.name), el("span", { className: "amount" }, k.time),
      el("span", { className: "more" }, k.row), el("span", { className: "more" }, `reads ${k.reads.join(", ") || "nothing"} · writes ${k.writes.join(", ")}`));
    return el("li", {}, button);
  }));
}

function showRules() {
  const made = new Map();
  for (const x of classes) for (const m of x.members) for (const rule of m.rules) made.set(rule, (made.get(rule) || 0) + 1);
  $("rule-count").textContent = data.rules.length;
  $("no-rules").hidden = made.size > 0;
  const order = [...data.rules].sort((a, b) => (made.get(b.name) || 0) - (made.get(a.name) || 0));
  $("rules").replaceChildren(...order.map(rule => {
    const n = made.get(rule.name) || 0;
    return el("li", {}, el("button", { ariaPressed: state.rule === rule.name, disabled: !n, onclick: () => pickRule(rule.name) },
      el("span", {}), el("span", { className: "name" }, rule.name),
      el("span", { className: "amount" }, n ? plural(n, "member") : plural(rule.matches, "match")), el("span", { className: "more" }, rule.says)));
  }));
}

const LISTED = 200;     // so many matches are listed; further ones are stepped to

function showFound() {
  const hidden = [...hits.keys()].filter(i => !cards.has(i)).length;
  $("found").textContent = !searching() ? "" : !matches.length ? "no member matches"
    : `${at >= 0 ? `${at + 1} of ` : ""}${plural(matches.length, "member")} in ${plural(hits.size, "class")}${hidden ? `, ${hidden} of them not shown yet` : ""}`;
  $("matches").replaceChildren(...matches.slice(0, LISTED).map(([i, k], n) => el("li", {}, el("button", { ariaPressed: n === at, onclick: () => stepTo(n) },
    el("span", { className: "name" }, classes[i].members[k].text), el("span", { className: "amount" }, `%${classes[i].key}`)))));
  if (at >= 0) $("matches").children[at]?.scrollIntoView({ block: "nearest" });
}
