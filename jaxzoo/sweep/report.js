// Learning curves behind marks and lines of tables: shown at the pointer or the focus, kept by a click or Enter.

const DATA = JSON.parse(document.querySelector("script[type='application/json']").textContent);
const SHOWN = 8; // runs that a card names
const REACH = 18; // pixels from the pointer to a mark
const hover = { card: null, node: null };
const pinned = { card: null, node: null };

const sectionOf = (node) => node.closest("section");
const itemOf = (node) => DATA[sectionOf(node).id].items[node.dataset.item];
const nodesOf = (section, kind) => [...section.querySelectorAll(`${kind}[data-item]`)];

// ---- cards ----

function runList(item) {
  const list = make("ul");
  for (let i = 0; i < Math.min(item.runs.length, SHOWN); i++) {
    list.append(make("li", {}, swatch(i), item.names[i], make("span", {}, item.values[i])));
  }
  if (item.runs.length > SHOWN) list.append(make("li", {}, "", `and ${item.runs.length - SHOWN} more`));
  return list;
}

function others(item, run) {
  const list = make("dl");
  const more = make("details", {}, make("summary", {}, "other metrics"), list);
  for (const [name, value] of run.metrics) {
    if (name !== item.metric) list.append(make("dt", {}, name), make("dd", {}, value));
  }
  return list.childElementCount ? [more] : [];
}

function cardOf(node, note, isPinned) {
  const item = itemOf(node);
  const runs = item.runs.map((run) => DATA[sectionOf(node).id].runs[run]);
  const curves = (kind) =>
    runs.map((run, i) => ({ points: run[kind], best: i === 0, dash: dash(i), diverged: run.diverged }));
  const top = runs.every((run) => run.valid.every((p) => p[1] <= 1)) ? 1 : 0;
  const charts = make("div", { class: "charts" });
  if (runs.some((run) => run.train.length + run.valid.length)) {
    charts.append(chart("training loss", curves("train")), chart("validation accuracy", curves("valid"), top));
  }
  const card = make(
    "aside",
    { class: isPinned ? "card pinned" : "card", "aria-label": `Learning curves of ${item.title}` },
    make("h4", {}, item.title || "all runs"),
    make("div", {}, make("span", { class: "value" }, item.values[0]), make("span", { class: "soft" }, ` ${item.metric}`)),
    make("div", { class: "soft" }, runs[0].facts.map((fact) => fact.replaceAll(" ", "\u00a0")).join(" · ")),
    charts,
    ...(item.runs.length > 1 || item.names[0] ? [runList(item)] : []),
    ...(isPinned ? others(item, runs[0]) : []),
  );
  if (note) card.append(make("div", { class: "soft" }, note));
  if (isPinned) {
    const close = make("button", { class: "close", type: "button", "aria-label": "Close", title: "Close (Escape)" }, "×");
    close.addEventListener("click", () => drop(pinned));
    card.append(close);
  }
  card.style.setProperty("--series", colourOf(node));
  return card;
}

function related(node) {
  const best = itemOf(node).runs[0];
  return nodesOf(sectionOf(node), "").filter((other) => itemOf(other).runs[0] === best);
}

function colourOf(node) {
  const dot = related(node).find((other) => other.matches(".mark"))?.querySelector("use");
  return (node.matches(".mark") ? node.querySelector("use") : dot)?.style.fill || "var(--accent)";
}

function overlap(a, b) {
  const width = Math.min(a.right, b.right) - Math.max(a.left, b.left);
  const height = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
  return Math.max(0, width) * Math.max(0, height);
}

// Near the anchor, where the window has room; a card that stays covers few marks, one that comes and goes no such card.
function place(card, anchor, node) {
  const [width, height, gap] = [card.offsetWidth, card.offsetHeight, 14];
  const [rightmost, lowest] = [document.documentElement.clientWidth - width - 8, window.innerHeight - height - 8];
  const beside = [
    [anchor.right + gap, anchor.top - height / 3],
    [anchor.left - gap - width, anchor.top - height / 3],
    [anchor.x0 ?? anchor.left, anchor.bottom + gap],
    [anchor.x0 ?? anchor.left, anchor.top - gap - height],
  ];
  const stays = card.matches(".pinned");
  const { left: start, right: end } = sectionOf(node).getBoundingClientRect();
  const parts = [0, 0.25, 0.5, 0.75, 1];
  const grid = parts.flatMap((x) => parts.map((y) => [start + x * (end - width - start), y * lowest]));
  const kept = !stays && pinned.card?.getBoundingClientRect();
  const marks = stays ? nodesOf(sectionOf(node), ".mark").map((mark) => mark.querySelector("use").getBoundingClientRect()) : [];
  const spots = (stays ? [...beside, ...grid] : beside).map(([x, y], i) => {
    const left = Math.max(8, Math.min(x, rightmost));
    const top = Math.max(8, Math.min(y, lowest));
    const box = { left, top, right: left + width, bottom: top + height };
    const away = stays ? Math.hypot(left + width / 2 - anchor.left, top + height / 2 - anchor.top) : i;
    const covered = marks.filter((mark) => overlap(box, mark) > 0).length;
    return { left, top, cost: away + 60 * covered + 100 * overlap(box, anchor) + (kept ? overlap(box, kept) : 0) };
  });
  const spot = spots.reduce((best, next) => (next.cost < best.cost ? next : best));
  card.style.left = `${spot.left + window.scrollX}px`;
  card.style.top = `${spot.top + window.scrollY}px`;
}

// ---- hover and pin ----

function ring(slot, isPinned) {
  for (const mark of related(slot.node).filter((node) => node.matches(".mark"))) {
    const dot = mark.querySelector("use");
    const circle = make("circle", { class: isPinned ? "ring pinned" : "ring", cx: dot.getAttribute("x"), cy: dot.getAttribute("y"), r: 6.5 });
    mark.ownerSVGElement.append(circle);
    slot.traces.push(() => circle.remove());
  }
  const name = isPinned ? "pinned" : "on";
  for (const row of related(slot.node).filter((node) => node.matches("tr"))) {
    row.classList.add(name);
    slot.traces.push(() => row.classList.remove(name));
  }
}

function drop(slot) {
  slot.card?.remove();
  slot.traces?.forEach((undo) => undo());
  slot.card = slot.node = null;
}

function show(slot, node, { note = "", pointer } = {}) {
  if (slot.node === node && slot.note === note) return;
  drop(slot);
  if (slot === hover && node === pinned.node) return;
  Object.assign(slot, { node, note, traces: [], card: cardOf(node, note, slot === pinned) });
  ring(slot, slot === pinned);
  document.body.append(slot.card);
  const box = (node.matches(".mark") ? node.querySelector("use") : node).getBoundingClientRect();
  const anchor = { left: box.left, right: box.right, top: box.top, bottom: box.bottom, x0: pointer?.clientX };
  place(slot.card, anchor, node);
}

function pin(node, pointer) {
  drop(hover);
  if (node === pinned.node) drop(pinned);
  else show(pinned, node, { pointer });
}

// ---- figures ----

function marksNear(marks, svg, event) {
  const matrix = svg.getScreenCTM();
  const far = marks.map((mark) => {
    const dot = mark.querySelector("use");
    const at = new DOMPoint(+dot.getAttribute("x"), +dot.getAttribute("y")).matrixTransform(matrix);
    return { mark, at, distance: Math.hypot(at.x - event.clientX, at.y - event.clientY) };
  });
  const nearest = far.reduce((best, next) => (next.distance <= best.distance ? next : best));
  if (nearest.distance > REACH) return [];
  const here = far.filter(({ at }) => Math.hypot(at.x - nearest.at.x, at.y - nearest.at.y) < 4);
  const runs = new Map(here.map(({ mark }) => [itemOf(mark).runs[0], mark])); // the topmost of each run
  return [...runs.values()].reverse();
}

function vertical(marks, from, direction) {
  const at = (mark) => mark.querySelector("use").getBoundingClientRect();
  const start = at(from);
  const cost = (mark) => {
    const along = direction * (at(mark).top - start.top);
    return along > 1 ? along + 4 * Math.abs(at(mark).left - start.left) : Infinity;
  };
  const best = marks.reduce((a, b) => (cost(b) < cost(a) ? b : a));
  return cost(best) < Infinity ? best : from;
}

function figure(svg) {
  const marks = [...svg.querySelectorAll(".mark")];
  if (!marks.length) return;
  svg.addEventListener("pointermove", (event) => {
    const here = marksNear(marks, svg, event);
    svg.classList.toggle("over", here.length > 0);
    if (here.length) show(hover, here[0], { note: here.length > 1 ? `${here.length} marks lie here: click for one after the other` : "" });
    else drop(hover);
  });
  svg.addEventListener("pointerleave", () => drop(hover));
  svg.addEventListener("click", (event) => {
    const here = marksNear(marks, svg, event);
    const next = here.indexOf(pinned.node) + 1;
    if (here.length) pin(next && next === here.length ? pinned.node : here[next]);
  });
  const step = (node, by) => marks[(marks.indexOf(node) + by + marks.length) % marks.length];
  keyboard(svg, () => marks, {
    ArrowRight: (node) => step(node, 1),
    ArrowLeft: (node) => step(node, -1),
    ArrowDown: (node) => vertical(marks, node, 1),
    ArrowUp: (node) => vertical(marks, node, -1),
  });
}

// One stop of the Tab key for all nodes; the keys of `moves` go between them.
function keyboard(area, nodes, moves) {
  const settle = (chosen) => nodes().forEach((node) => node.setAttribute("tabindex", node === chosen ? 0 : -1));
  settle(nodes()[0]);
  area.addEventListener("keydown", (event) => {
    const node = event.target.closest("[data-item]");
    if (!node) return;
    if (event.key === "Enter" || event.key === " ") pin(node);
    else if (moves[event.key]) moves[event.key](node).focus();
    else return;
    event.preventDefault();
  });
  area.addEventListener("focusin", (event) => {
    const node = event.target.closest("[data-item]");
    if (!node) return;
    settle(node);
    if (node.matches(":focus-visible")) show(hover, node);
  });
  area.addEventListener("focusout", () => drop(hover));
}

// ---- tables ----

function sortBy(table, column, descending) {
  const value = (row) => {
    const cell = row.cells[column];
    return cell.dataset.value === undefined ? cell.textContent : cell.dataset.value && +cell.dataset.value;
  };
  const compare = (a, b) => {
    if (a === "" || b === "") return (a === "") - (b === ""); // what has no value stays last
    const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
    return descending ? -order : order;
  };
  const body = table.tBodies[0];
  body.append(...[...body.rows].sort((a, b) => compare(value(a), value(b))));
}

function tableOf(table) {
  const body = table.tBodies[0];
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const numeric = [...body.rows].some((row) => row.cells[column].classList.contains("number"));
    head.classList.toggle("number", numeric);
    head.firstChild.addEventListener("click", () => {
      const sorted = head.getAttribute("aria-sort");
      const descending = sorted ? sorted === "ascending" : numeric;
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      sortBy(table, column, descending);
    });
  });
  body.addEventListener("pointerover", (event) => show(hover, event.target.closest("tr"), { pointer: event }));
  body.addEventListener("pointerleave", () => drop(hover));
  body.addEventListener("click", (event) => pin(event.target.closest("tr"), event));
  keyboard(body, () => [...body.rows], {
    ArrowDown: (row) => row.nextElementSibling ?? row,
    ArrowUp: (row) => row.previousElementSibling ?? row,
  });
}

// ---- page ----

document.querySelectorAll("figure > svg").forEach(figure);
document.querySelectorAll("table").forEach(tableOf);
document.addEventListener("keydown", (event) => event.key === "Escape" && (drop(hover), drop(pinned)));
window.addEventListener("resize", () => (drop(hover), drop(pinned)));

const links = new Map([...document.querySelectorAll("nav li a")].map((link) => [link.getAttribute("href").slice(1), link]));
const spy = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) links.get(target.id)?.setAttribute("aria-current", "true");
      else links.get(target.id)?.removeAttribute("aria-current");
    }
  },
  { rootMargin: "-30% 0px -65% 0px" },
);
document.querySelectorAll("section").forEach((section) => spy.observe(section));
