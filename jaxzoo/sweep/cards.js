// Cards: what is known of the runs behind a mark or a line, and where on the screen it is told.

const SHOWN = 8; // runs that a card names

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

function chartsOf(runs) {
  const curves = (kind) =>
    runs.map((run, i) => ({ points: run[kind], best: i === 0, dash: dash(i), diverged: run.diverged }));
  const charts = make("div", { class: "charts" });
  if (runs.some((run) => run.train.length + run.valid.length)) {
    charts.append(chart("training loss", curves("train")), chart("validation accuracy", curves("valid"), 1));
  }
  return charts;
}

function closing() {
  const attributes = { class: "close", type: "button", "aria-label": "Close", title: "Close (Escape)" };
  const button = make("button", attributes, "×");
  button.addEventListener("click", () => drop(pinned));
  return button;
}

const span = (kind, text) => make("span", { class: kind }, text);

function cardOf(node, note, isPinned) {
  const item = itemOf(node);
  const runs = item.runs.map((run) => DATA[sectionOf(node).id].runs[run]);
  const card = make(
    "aside",
    { class: isPinned ? "card pinned" : "card", "aria-label": `Learning curves of ${item.title}` },
    make("h4", {}, item.title || "all runs"),
    make("div", {}, span("value", item.value), span("soft", ` ${item.metric}`)),
    make("div", { class: "soft" }, runs[0].facts.map((fact) => fact.replaceAll(" ", "\u00a0")).join(" · ")),
    chartsOf(runs),
    ...(item.runs.length > 1 || item.names[0] ? [runList(item)] : []),
    ...(isPinned ? others(item, runs[0]) : []),
  );
  if (note) card.append(make("div", { class: "soft" }, note));
  if (isPinned) card.append(closing());
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

const boxOf = (node) => (node.querySelector("use") ?? node).getBoundingClientRect();

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
  const marks = stays ? nodesOf(sectionOf(node), ".mark").map((mark) => boxOf(mark)) : [];
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
