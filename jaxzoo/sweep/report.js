// Learning curves behind marks and lines of tables: shown at the pointer or the focus, kept by a click or Enter.

const DATA = JSON.parse(document.querySelector("script[type='application/json']").textContent);
const REACH = 18; // pixels from the pointer to a mark
const hover = { card: null, node: null };
const pinned = { card: null, node: null };

const sectionOf = (node) => node.closest("section");
const itemOf = (node) => DATA[sectionOf(node).id].items[node.dataset.item];
const nodesOf = (section, kind) => [...section.querySelectorAll(`${kind}[data-item]`)];

// ---- hover and pin ----

function ring(slot, isPinned) {
  const same = (mark) => slot.node.matches("tr") || itemOf(mark).metric === itemOf(slot.node).metric;
  for (const mark of related(slot.node).filter((node) => node.matches(".mark") && same(node))) {
    const dot = mark.querySelector("use");
    const kind = isPinned ? "ring pinned" : "ring";
    const circle = make("circle", { class: kind, cx: dot.getAttribute("x"), cy: dot.getAttribute("y"), r: 6.5 });
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
  const box = boxOf(node);
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
  const keyOf = (mark) => `${itemOf(mark).runs[0]} ${itemOf(mark).metric}`;
  const runs = new Map(here.map(({ mark }) => [keyOf(mark), mark])); // of equal ones the topmost
  return [...runs.values()].reverse();
}

function vertical(marks, from, direction) {
  const start = boxOf(from);
  const cost = (mark) => {
    const along = direction * (boxOf(mark).top - start.top);
    return along > 1 ? along + 4 * Math.abs(boxOf(mark).left - start.left) : Infinity;
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
    const note = here.length > 1 ? `${here.length} marks lie here: click for one after the other` : "";
    if (here.length) show(hover, here[0], { note });
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
    const numbers = typeof a === "number" && typeof b === "number";
    const order = numbers ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
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

const entries = [...document.querySelectorAll("nav li a")];
const links = new Map(entries.map((link) => [link.getAttribute("href").slice(1), link]));
const spy = new IntersectionObserver(
  (changes) => {
    for (const { target, isIntersecting } of changes) {
      if (isIntersecting) links.get(target.id)?.setAttribute("aria-current", "true");
      else links.get(target.id)?.removeAttribute("aria-current");
    }
  },
  { rootMargin: "-30% 0px -65% 0px" },
);
document.querySelectorAll("section").forEach((section) => spy.observe(section));
