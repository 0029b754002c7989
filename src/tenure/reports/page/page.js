// Puts the page together: reads the data, makes the view, connects controls, keys and charts.
import { decode } from "./decode.js";
import { button, make } from "./elements.js";
import { KEYS, listenToKeys } from "./keys.js";
import { Panel } from "./panel.js";
import { Recording } from "./record.js";
import { matchesOf, parseQuery } from "./search.js";
import { Stage } from "./stage.js";
import { View } from "./view.js";
import { formatBytes, formatCount, formatSeconds, momentName, visible } from "./units.js";

const SMOOTH = 10; // milliseconds, in which a zoom should be painted

const byId = (id) => document.getElementById(id);

/** The controls above the charts, and the legend. */
class Controls {
  constructor(view, stage, panel) {
    this.view = view;
    this.stage = stage;
    this.panel = panel;
    this.field = byId("search");
    document.querySelector(`input[name=group][value=${view.grouping.kind}]`).checked = true;
    this.#radios("group", (kind) => view.groupBy(kind));
    this.#radios("axis", (kind) => view.useAxis(kind));
    this.#radios("lanes", (kind) => {
      view.lanes = kind;
      view.changed("look");
    });
    byId("cache").addEventListener("change", (event) => {
      view.showsCache = event.target.checked;
      view.changed("look");
    });
    byId("zoom-in").addEventListener("click", () => view.zoom(0.5, view.axis.x(view.moment)));
    byId("zoom-out").addEventListener("click", () => view.zoom(2));
    byId("fit").addEventListener("click", () => view.fit());
    byId("peak").addEventListener("click", () => view.goTo(view.record.peak));
    byId("theme").addEventListener("click", () => this.otherTheme());
    byId("help").addEventListener("click", () => this.help());
    byId("close-help").addEventListener("click", () => byId("keys").close());
    this.field.addEventListener("input", () => this.#typed());
    if (!view.record.time) byId("axis-choice").hidden = true;
    byId("key-list").replaceChildren(
      ...KEYS.flatMap(([, what, written]) => [
        make("dt", "", {}, make("kbd", "", {}, written)),
        make("dd", "", {}, what),
      ]),
    );
  }

  #radios(name, act) {
    for (const radio of document.querySelectorAll(`input[name=${name}]`)) {
      radio.addEventListener("change", () => act(radio.value));
    }
  }

  #next(name) {
    const radios = [...document.querySelectorAll(`input[name=${name}]`)];
    const at = radios.findIndex((radio) => radio.checked);
    const next = radios[(at + 1) % radios.length];
    next.checked = true;
    next.dispatchEvent(new Event("change"));
  }

  nextGrouping() {
    this.#next("group");
  }

  otherAxis() {
    if (this.view.record.time) this.#next("axis");
  }

  search() {
    this.field.focus();
    this.field.select();
  }

  #typed() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.find(this.field.value), 100);
  }

  find(text) {
    const query = parseQuery(text);
    const matches = matchesOf(this.view.record, query);
    this.view.find(matches);
    this.panel.open(matches ? "search" : "findings");
    if (!matches) return;
    const count = matches.reduce((sum, one) => sum + one, 0);
    announce(`${formatCount(count)} allocations match`);
  }

  otherTheme() {
    const root = document.documentElement;
    root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
    try {
      localStorage.setItem("tenure-theme", root.dataset.theme);
    } catch {
      // storage is switched off: the choice lasts until the page is closed
    }
    this.stage.takeTheme();
    this.legend();
  }

  help() {
    byId("keys").showModal();
  }

  escape() {
    if (this.view.selected >= 0) this.view.select(-1);
    else if (this.field.value) {
      this.field.value = "";
      this.find("");
    }
    document.activeElement?.blur();
  }

  /** The groups with their bytes at the moment; a click shows one alone. */
  legend() {
    const { view, stage } = this;
    const bytes = new Float64Array(view.grouping.groups.length);
    for (const i of view.record.liveAt(view.moment)) {
      bytes[view.grouping.of[i]] += view.record.size[i];
    }
    const chips = view.grouping.groups
      .filter((group) => group.used)
      .map((group) => {
        const swatch = make("span", "swatch", { ariaHidden: "true" });
        swatch.style.background = stage.palette.group(group.color).css;
        const chip = button("chip", "", () => view.isolate(group.index), {
          ariaPressed: String(group.shown),
          title: "Show this alone, or everything again",
        });
        const size = make("span", "bytes", {}, formatBytes(bytes[group.index]));
        chip.replaceChildren(swatch, make("span", "name", {}, visible(group.name)), size);
        return chip;
      });
    const title = make("span", "quiet", {}, "at the moment:");
    byId("legend").replaceChildren(title, ...chips);
    byId("cache-key").hidden = !view.look().showsCache;
  }
}

function announce(text) {
  byId("announce").textContent = visible(text);
}

function fillHeader(record) {
  const { head } = record;
  document.title = `${visible(head.file)} · tenure`;
  byId("file").textContent = visible(head.file);
  const seconds = record.time?.length ? record.time[record.time.length - 1] / 1e6 : null;
  const parts = [
    `GPU ${head.device}`,
    head.rules,
    `${formatCount(head.events)} events`,
    `${formatCount(head.allocations)} allocations`,
  ];
  if (seconds !== null) parts.push(formatSeconds(seconds));
  if (!head.exact) parts.push("the replay differs from the record");
  byId("about").textContent = visible(parts.join(" · "));
  const { peak, end } = head;
  const ratio = peak.reserved / Math.max(peak.allocated, 1);
  const numbers = [
    ["peak live", formatBytes(peak.allocated), "most bytes in use by tensors"],
    ["peak reserved", formatBytes(peak.reserved), "most bytes the driver gave"],
    ["reserved ÷ live", `${ratio.toFixed(2)} ×`, "of the two peaks"],
    ["live at the end", formatBytes(end.allocated), `${formatBytes(end.reserved)} reserved`],
  ];
  byId("numbers").replaceChildren(
    ...numbers.map(([name, value, note]) =>
      make(
        "div",
        "number",
        {},
        make("dt", "", {}, name),
        make("dd", "value", {}, value),
        make("dd", "quiet", {}, note),
      ),
    ),
  );
}

/** Names of the lanes, over the picture so that they keep their place. */
function laneNames(order, names, most, height, above) {
  const labels = order.map((lane, at) => {
    const label = make(
      "div",
      "lane-name",
      {},
      make("strong", "", {}, names[lane]),
      make("span", "", {}, formatBytes(most[at])),
    );
    label.style.top = `${above + at * height + 8}px`;
    return label;
  });
  byId("lane-names").replaceChildren(...labels);
}

function describeRange(view) {
  const from = view.axis.from(view.x0);
  const to = Math.min(view.axis.from(view.x1), view.record.positions) - 1;
  const share = (view.x1 - view.x0) / view.axis.end;
  const percent = share < 0.1 ? (share * 100).toPrecision(2) : Math.round(share * 100);
  const [first, last] = [from, to].map((position) => formatCount(Math.max(position - 1, 0)));
  byId("range").textContent = `events ${first} to ${last} (${percent} %)`;
}

function describeCharts(view) {
  const { record } = view;
  const text =
    `At the moment, ${momentName(view.moment)}: ${formatBytes(record.live[view.moment])} live, ` +
    `${formatBytes(record.reserved[view.moment])} reserved.`;
  for (const id of ["live", "addresses", "lanes"]) {
    byId(id)
      .querySelector(".stage")
      .setAttribute("aria-label", `${byId(`${id}-title`).textContent}. ${text}`);
  }
  announce(text);
}

async function start() {
  const begin = performance.now();
  const { head, columns } = await decode(byId("data").textContent);
  byId("data").remove();
  const record = new Recording(head, columns);
  fillHeader(record);
  let parts = null;
  const view = new View(record, (what) => parts?.changed(what));
  byId("loading").remove();
  byId("content").hidden = false;
  const stage = new Stage(view, {
    overview: byId("overview"),
    live: byId("live"),
    addresses: byId("addresses"),
    lanes: byId("lanes"),
    laneNames,
  });
  const panel = new Panel(view, byId("panel"));
  const controls = new Controls(view, stage, panel);
  parts = { view, stage, panel, controls, changed: (what) => react(parts, what) };
  listenToKeys(parts);
  addEventListener("resize", () => stage.request());
  addEventListener("scroll", () => stage.scrolled(), { passive: true });
  react(parts, "look");
  stage.draw();
  document.documentElement.dataset.ready = String(Math.round(performance.now() - begin));
  warmUp(stage);
  globalThis.tenureView = parts; // for those who look at it from the console, and for tests
}

/** Paints again while nothing else happens, until it is quick: browsers compile what runs often. */
function warmUp(stage, times = 12) {
  if (!times || stage.lastDraw < SMOOTH) return;
  const idle = globalThis.requestIdleCallback ?? ((then) => setTimeout(then, 50));
  idle(() => {
    stage.draw(true);
    warmUp(stage, times - 1);
  });
}

/** What follows a change of the view. */
function react({ view, stage, panel, controls }, what) {
  if (what === "moment") stage.requestOver();
  else stage.request();
  if (what !== "range") {
    controls.legend();
    panel.refresh();
    describeCharts(view);
  }
  if (what === "pick") panel.open(view.selected >= 0 ? "block" : "moment");
  if (what !== "moment") describeRange(view);
}

start().catch((error) => {
  byId("loading").textContent = `This page could not be shown: ${error.message}`;
  throw error;
});
