"use strict";
// The interactive grid of groups. It shows which groups are seen, which can be extrapolated, and which could be
// extrapolated if the marked groups were collected.

const WINDOW = 60; // values of an attribute shown at a time; must equal WINDOW in coverage_section.py
const MAX_SLICES = 24; // grids drawn at once, one for each combination of the attributes that are not axes
const MAX_CELLS = 1500; // cells in all of these grids together
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const SIGNS = { seen: "", inside: "+", gained: "+", outside: "×", marked: "✓" };
const WORDS = {
  inside: "unseen, can be extrapolated",
  gained: "unseen, could be extrapolated once the marked groups are collected",
  outside: "unseen, out of reach",
  marked: "marked for collection",
};

class Explorer {
  constructor(root) {
    this.root = root;
    this.data = JSON.parse(root.querySelector("script").textContent);
    this.sizes = this.data.values.map((values) => values.length);
    this.marked = new Map(); // codes of the groups marked for collection, by key
    this.axes = this.sizes.length > 1 ? [0, 1] : [0, null];
    this.first = this.sizes.map(() => 0); // position of the first value shown, by attribute
    this.fixed = this.data.base.slice(); // values of the attributes that are not axes
    this.focus = [0, 0];
    root.querySelector(".complete").addEventListener("click", () => this.complete());
    root.querySelector(".clear").addEventListener("click", () => this.clear());
    root.querySelector(".copy").addEventListener("click", () => this.copy());
    root.querySelector(".download").addEventListener("click", () => this.download());
    this.choose(0);
    this.controls();
    this.draw();
  }

  // Select a scenario: take its seen groups and clear the marks.
  choose(number) {
    this.scenario = number;
    const dropped = new Set(this.data.scenarios.length ? this.data.scenarios[number].dropped : []);
    this.seen = new Map();
    this.data.seen.forEach((code, position) => {
      if (!dropped.has(position)) this.seen.set(code.join(), this.data.counts[position]);
    });
    this.witnesses = this.data.scenarios.length ? this.data.scenarios[number].witnesses : this.data.witnesses;
    this.nSeen = this.data.n_seen - dropped.size;
    this.basis = dropped.size ? [...this.seen.keys()].map(parsed) : this.data.basis;
    this.plan = this.data.scenarios.length ? [] : this.data.plan;
    this.base = this.basis[0];
    this.seenHull = hullOf(this.sizes, this.basis);
    this.marked.clear();
    this.update();
  }

  // Recompute the hull of seen and marked groups, its coverage, and the groups that remain to be collected.
  update() {
    this.hull = this.seenHull.copy();
    for (const code of this.marked.values()) this.hull.add(code);
    this.coverage = this.hull.coverage();
    this.remaining = completion(this.hull, this.plan, this.base);
  }

  state(code) {
    const key = code.join();
    if (this.seen.has(key)) return "seen";
    if (this.marked.has(key)) return "marked";
    if (this.seenHull.contains(code)) return "inside";
    return this.hull.contains(code) ? "gained" : "outside";
  }

  toggle(code) {
    const key = code.join();
    if (this.seen.has(key)) return;
    if (!this.marked.delete(key)) this.marked.set(key, code);
    this.update();
    this.draw();
    this.tell(code);
  }

  complete() {
    const added = this.remaining.length;
    for (const code of this.remaining) this.marked.set(code.join(), code);
    this.update();
    this.draw();
    this.say(added ? `${counted(added, "group")} marked: with them, every combination is determined` : "every combination is already determined");
  }

  clear() {
    this.marked.clear();
    this.update();
    this.draw();
    this.say("no group is marked");
  }

  label(code) {
    return `(${code.map((value, attribute) => this.data.values[attribute][value]).join(", ")})`;
  }

  csv() {
    const lines = [this.data.names];
    for (const code of this.marked.values()) lines.push(code.map((value, attribute) => this.data.values[attribute][value]));
    return lines.map((line) => line.map(quoted).join(",")).join("\n") + "\n";
  }

  async copy() {
    const box = this.root.querySelector(".csv");
    try {
      await navigator.clipboard.writeText(this.csv());
    } catch {
      box.closest("details").open = true;
      box.select();
      document.execCommand("copy"); // browsers may forbid clipboard access to a page opened from disk
    }
    this.say(`${counted(this.marked.size, "group")} copied as CSV`);
  }

  download() {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([this.csv()], { type: "text/csv" }));
    link.download = "groups-to-collect.csv";
    link.click();
    URL.revokeObjectURL(link.href);
  }

  // Set a text above the grid. Its box never shrinks, which would move the grid under the pointer.
  write(selector, text) {
    const box = this.root.querySelector(selector);
    box.textContent = text;
    box.style.minHeight = `${box.offsetHeight}px`;
  }

  say(text) {
    this.write(".detail", text);
  }

  tell(code) {
    const [state, count] = [this.state(code), this.seen.get(code.join())];
    const reason = state === "inside" || state === "gained" ? this.reason(code, state) : null;
    const what = state === "seen" ? `seen, ${counted(count, "row")}` : WORDS[state];
    this.say(`${this.label(code)}: ${what}` + (reason ? `; it equals ${reason}` : ""));
  }

  // Return the combination of seen groups (and, if it is needed, of marked groups) that equals the group, as text.
  reason(code, state) {
    if (this.sizes.length !== 2) return state === "inside" ? this.witnesses[code.join()] : null;
    const known = [...this.basis, ...[...this.seen.keys()].map(parsed)];
    const path = pathWitness(code, state === "inside" ? known : [...known, ...this.marked.values()]);
    return path.map(([sign, part], number) => (sign < 0 ? " − " : number ? " + " : "") + this.label(part)).join("");
  }

  // Build the menus: the scenario; with more than two attributes, the axes and the values of the other attributes;
  // and, for an attribute with many values, which of them to show.
  controls() {
    const place = this.root.querySelector(".choices");
    place.replaceChildren();
    const names = this.data.names;
    if (this.data.scenarios.length) {
      const labels = this.data.scenarios.map((scenario) => scenario.label);
      place.append(choice("training without", labels, this.scenario, (number) => { this.choose(number); this.draw(); }));
    }
    if (this.sizes.length > 2) {
      ["down", "across"].forEach((where, axis) => {
        place.append(choice(where, names, this.axes[axis], (attribute) => {
          if (this.axes[1 - axis] === attribute) this.axes[1 - axis] = this.axes[axis];
          this.axes[axis] = attribute;
          this.controls();
          this.draw();
          place.querySelectorAll("select")[axis + (this.data.scenarios.length ? 1 : 0)].focus(); // the menu was rebuilt
        }));
      });
    }
    const every = this.slices().length > 1;
    names.forEach((name, attribute) => {
      if (!this.axes.includes(attribute)) {
        if (every) return; // there is a grid for each of its values
        const order = this.data.order[attribute];
        const values = order.map((value) => this.data.values[attribute][value]);
        place.append(choice(name, values, order.indexOf(this.fixed[attribute]), (number) => {
          this.fixed[attribute] = order[number];
          this.draw();
        }));
      } else if (this.data.order[attribute].length > WINDOW) {
        const shown = this.data.order[attribute].length;
        const starts = Array.from({ length: Math.ceil(shown / WINDOW) }, (_, number) => number * WINDOW);
        const labels = starts.map((start) => `${start + 1}–${Math.min(shown, start + WINDOW)} of ${shown}`);
        place.append(choice(`values of ${name}`, labels, this.first[attribute] / WINDOW, (number) => {
          this.first[attribute] = starts[number];
          this.draw();
        }));
      }
    });
  }

  // Return the codes of the values that an axis shows.
  shown(axis) {
    const attribute = this.axes[axis];
    if (attribute === null) return [null];
    const start = this.first[attribute];
    return this.data.order[attribute].slice(start, start + WINDOW);
  }

  // Return the values of the other attributes in each grid: all combinations, or only the chosen one if there are many.
  slices() {
    let slices = [this.fixed.slice()];
    const cells = this.shown(0).length * this.shown(1).length;
    for (const attribute of this.sizes.keys()) {
      if (this.axes.includes(attribute)) continue;
      const values = this.data.order[attribute];
      if (slices.length * values.length > Math.min(MAX_SLICES, MAX_CELLS / cells)) return [this.fixed.slice()];
      slices = slices.flatMap((slice) => values.map((value) => slice.map((old, place) => (place === attribute ? value : old))));
    }
    return slices;
  }

  // Return the values of the attributes that are not axes, as text; empty if there are none.
  sliceWords(slice) {
    const others = [...this.sizes.keys()].filter((attribute) => !this.axes.includes(attribute));
    return others.map((attribute) => `${this.data.names[attribute]} = ${this.data.values[attribute][slice[attribute]]}`).join(", ");
  }

  draw() {
    const hadFocus = this.root.contains(document.activeElement);
    const [rows, columns] = [this.shown(0), this.shown(1)];
    this.focus = [Math.min(this.focus[0], rows.length * this.slices().length - 1), Math.min(this.focus[1], columns.length - 1)];
    this.drawGrid(rows, columns);
    this.drawSummary();
    this.drawList();
    const active = document.activeElement;
    if (hadFocus && (!this.root.contains(active) || active.disabled)) this.cells[this.focus[0]][this.focus[1]].focus();
  }

  drawGrid(rows, columns) {
    const [down, across] = this.axes;
    const hadFocus = this.root.contains(document.activeElement) && document.activeElement.closest("table");
    const corner = across === null ? this.data.names[down] : `${this.data.names[down]} \\ ${this.data.names[across]}`;
    const heads = columns.map((value) => (value === null ? "" : String(this.data.values[across][value])));
    const tall = columns.length > 4 && heads.some((head) => head.length > 7);
    const slices = this.slices();
    const total = this.data.order.reduce((product, values, attribute) => product * (this.axes.includes(attribute) ? 1 : values.length), 1);
    this.cells = [];
    const grids = slices.map((slice, number) => {
      const words = this.sliceWords(slice);
      const table = element("table", { role: "grid", class: "groups", "aria-label": words });
      const header = element("tr", {}, element("th", { scope: "col", class: "corner" }, corner));
      heads.forEach((head) => header.append(element("th", { scope: "col", class: tall ? "tall" : "" }, element("span", { title: head }, head))));
      table.append(element("thead", {}, header));
      const body = element("tbody");
      rows.forEach((row, i) => {
        const name = String(this.data.values[down][row]);
        const line = element("tr", {}, element("th", { scope: "row", title: name }, name));
        this.cells.push(columns.map((column, j) => {
          const code = slice.slice();
          code[down] = row;
          if (across !== null) code[across] = column;
          const cell = this.cell(code, number * rows.length + i, j);
          line.append(element("td", {}, cell));
          return cell;
        }));
        body.append(line);
      });
      table.append(body);
      if (!words) return table;
      const alone = slices.length < total ? ` (one of ${total.toLocaleString("en")} grids: choose another one above)` : "";
      return element("div", { class: "slice" }, element("p", {}, words + alone), table);
    });
    this.root.querySelector(".grid").replaceChildren(...grids);
    if (hadFocus) this.cells[this.focus[0]][this.focus[1]].focus();
  }

  cell(code, i, j) {
    const state = this.state(code);
    const count = this.seen.get(code.join());
    const what = state === "seen" ? `seen, ${counted(count, "row")}` : WORDS[state];
    const chosen = i === this.focus[0] && j === this.focus[1];
    const button = element("button", {
      type: "button",
      class: `cell ${state}`,
      tabindex: chosen ? "0" : "-1",
      "aria-label": `${this.label(code)}: ${what}`,
      "data-code": code.join(),
    }, state === "seen" ? compact(count) : SIGNS[state]);
    if (state === "seen") button.setAttribute("aria-disabled", "true");
    else button.setAttribute("aria-pressed", String(state === "marked"));
    button.addEventListener("click", () => { this.move(i, j, false); this.toggle(code); });
    button.addEventListener("focus", () => this.tell(code));
    button.addEventListener("mouseenter", () => this.tell(code));
    button.addEventListener("keydown", (event) => this.key(event, i, j));
    return button;
  }

  key(event, i, j) {
    const [rows, columns] = [this.cells.length, this.cells[0].length];
    const target = {
      ArrowDown: [i + 1, j],
      ArrowUp: [i - 1, j],
      ArrowRight: [i, j + 1],
      ArrowLeft: [i, j - 1],
      Home: [i, 0],
      End: [i, columns - 1],
    }[event.key];
    if (!target || target[0] < 0 || target[1] < 0 || target[0] >= rows || target[1] >= columns) return;
    event.preventDefault();
    this.move(target[0], target[1], true);
  }

  move(i, j, focus) {
    const [before, after] = [this.cells[this.focus[0]][this.focus[1]], this.cells[i][j]];
    before.tabIndex = -1;
    after.tabIndex = 0;
    this.focus = [i, j];
    if (focus) after.focus();
  }

  drawSummary() {
    const { inside, total, exact } = this.coverage;
    const set = (name, text) => { this.root.querySelector(name).textContent = text; };
    set(".determined", `${exact ? "" : "about "}${inside.toLocaleString("en")} of ${total.toLocaleString("en")} groups determined`);
    set(".share", `${exact ? "" : "≈ "}${percent(inside / total)}`);
    set(".rank", `rank ${this.hull.rank} of ${this.hull.fullRank}`);
    const width = (share) => `${(100 * share).toFixed(3)}%`;
    this.root.querySelector(".bar-inside").style.width = width(inside / total);
    this.root.querySelector(".bar-seen").style.width = width(this.nSeen / total);
    const named = this.remaining.slice(0, 8).map((code) => this.label(code)).join(", ");
    const more = this.remaining.length > 8 ? ` and ${this.remaining.length - 8} more` : "";
    this.write(".remaining", this.remaining.length
      ? `At least ${counted(this.remaining.length, "more group")} must be collected to determine every combination, for example ${named}${more}.`
      : "Every combination is determined.");
    this.root.querySelector(".complete").disabled = !this.remaining.length;
    for (const name of [".clear", ".copy", ".download"]) this.root.querySelector(name).disabled = !this.marked.size;
  }

  drawList() {
    const list = this.root.querySelector(".marked-list");
    list.replaceChildren(...[...this.marked.values()].map((code) => {
      const remove = element("button", { type: "button", "aria-label": `remove ${this.label(code)}` }, "✕");
      remove.addEventListener("click", () => this.toggle(code));
      return element("li", {}, `${this.label(code)} `, remove);
    }));
    this.root.querySelector(".marked-part").hidden = !this.marked.size;
    this.root.querySelector(".csv").value = this.csv();
  }
}

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== "") made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function choice(label, options, chosen, change) {
  const select = element("select");
  options.forEach((option, number) => select.append(element("option", { value: String(number) }, String(option))));
  select.selectedIndex = chosen;
  select.addEventListener("change", () => change(select.selectedIndex));
  return element("label", {}, `${label} `, select);
}

function parsed(key) {
  return key.split(",").map(Number);
}

function quoted(value) {
  const text = String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function counted(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

function compact(number) {
  if (number > 0 && number < 0.01) return "<0.01";
  return number >= 9999.5 ? SHORT.format(number) : String(Math.round(number * 100) / 100);
}

function percent(share) {
  const digits = share > 0.999 && share < 1 ? 3 : share < 0.01 && share > 0 ? 3 : 1;
  return `${(100 * share).toFixed(digits).replace(/\.0+$/, "")}%`;
}

for (const root of document.querySelectorAll(".explorer")) new Explorer(root);
