// What stands beside the charts: findings, the moment, the selected block, what a search found.
import { bar, button, facts, make, sentence } from "./elements.js";
import { largestAt, linesAt, neighboursOf, pinnedAt, splitAt } from "./moment.js";
import { summarize } from "./search.js";
import { baseName, formatBytes, formatCount, formatSeconds, momentName } from "./units.js";

const MOST_LINES = 10;
const MOST_BLOCKS = 8;
const MOST_PINNED = 6;
const MOST_FOUND = 40;

/** The four tabs; each is filled again when it is looked at after a change. */
export class Panel {
  constructor(view, root) {
    this.view = view;
    this.record = view.record;
    this.tabs = [...root.querySelectorAll("[role=tab]")];
    this.bodies = [...root.querySelectorAll("[role=tabpanel]")];
    this.current = "findings";
    this.tabs.forEach((tab, at) => {
      tab.addEventListener("click", () => this.open(tab.dataset.tab));
      tab.addEventListener("keydown", (event) => this.#arrows(event, at));
    });
    this.fillFindings();
    this.open("findings");
  }

  #arrows(event, at) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    const tab = this.tabs[(at + by + this.tabs.length) % this.tabs.length];
    this.open(tab.dataset.tab);
    tab.focus();
  }

  open(name) {
    this.current = name;
    for (const tab of this.tabs) {
      const chosen = tab.dataset.tab === name;
      tab.setAttribute("aria-selected", String(chosen));
      tab.tabIndex = chosen ? 0 : -1;
    }
    for (const body of this.bodies) body.hidden = body.dataset.tab !== name;
    this.refresh();
  }

  #body(name) {
    return this.bodies.find((body) => body.dataset.tab === name);
  }

  refresh() {
    if (this.current === "moment") this.fillMoment();
    if (this.current === "block") this.fillBlock();
    if (this.current === "search") this.fillSearch();
  }

  // --- findings ------------------------------------------------------------------------------

  fillFindings() {
    const { head } = this.record;
    const go = (position) => this.view.goTo(position);
    const body = this.#body("findings");
    const items = head.findings.map((finding) => this.#finding(finding, go));
    if (!items.length) items.push(make("p", "quiet", {}, "Nothing to report."));
    const notes = head.missing.map((text) => make("p", "note", {}, sentence(`Note: ${text}.`, go)));
    body.replaceChildren(...notes, ...items);
  }

  #finding(finding, go) {
    const sure = finding.confidence === "measured" ? "" : ` ${finding.confidence ?? ""}`;
    const serious = finding.severity === "error" || finding.severity === "warning";
    const lines = finding.evidence.map((text) => make("li", "", {}, sentence(text, go)));
    const advice = finding.advice.map((item) => this.#advice(item));
    const details = make("details", "", { open: serious });
    details.append(
      make("summary", "", {}, lines.length + advice.length ? "Why, and what to do" : ""),
    );
    if (lines.length) details.append(make("ul", "evidence", {}, ...lines));
    details.append(...advice);
    if (lines.length + advice.length) {
      details.append(make("p", "quiet", {}, "More: ", make("code", "", {}, finding.more)));
    }
    return make(
      "article",
      `finding ${finding.severity}`,
      {},
      make(
        "header",
        "",
        {},
        make("span", "", {}, make("code", "", {}, finding.code), sure),
        finding.bytes ? make("span", "bytes", {}, formatBytes(finding.bytes)) : "",
      ),
      make("h3", "", {}, sentence(capital(finding.title), go)),
      lines.length + advice.length ? details : "",
    );
  }

  #advice(advice) {
    const parts = [make("p", "", {}, advice.text)];
    if (advice.conf !== null && advice.conf !== undefined) {
      parts.push(make("code", "conf", {}, `PYTORCH_CUDA_ALLOC_CONF=${advice.conf}`));
    }
    const checked = advice.verified;
    if (checked) {
      const change = (from, to) => `${formatBytes(from)} → ${formatBytes(to)}`;
      const { smallest_capacity_before: before, smallest_capacity_after: after } = checked;
      const reserved = change(checked.peak_reserved_before, checked.peak_reserved_after);
      const text = `Replayed: smallest card ${change(before, after)}, peak reserved ${reserved}`;
      parts.push(make("p", after < before ? "verified" : "quiet", {}, text));
    }
    return make("div", "advice", {}, ...parts);
  }

  // --- the moment ----------------------------------------------------------------------------

  fillMoment() {
    const { view, record } = this;
    const position = view.moment;
    const split = splitAt(record, position);
    const seconds = record.secondsAt(position);
    const parts = [
      make(
        "p",
        "where",
        {},
        capital(momentName(position)),
        seconds === null ? "" : make("span", "quiet", {}, ` · ${formatSeconds(seconds)}`),
      ),
      this.#split(split),
    ];
    if (view.matches) parts.push(make("p", "note", {}, "Only what the search matches is listed."));
    const lines = linesAt(record, position, view.matches);
    parts.push(make("h3", "", {}, "Live bytes by line"), this.#lines(lines, split.live));
    const blocks = largestAt(record, position, MOST_BLOCKS, view.matches);
    parts.push(make("h3", "", {}, "Largest live blocks"), this.#blocks(blocks));
    const pinned = pinnedAt(record, position, MOST_PINNED);
    if (pinned.length) {
      parts.push(
        make("h3", "", {}, "Segments with most cached bytes that cannot be returned"),
        this.#pinned(pinned),
      );
    }
    this.#body("moment").replaceChildren(...parts);
  }

  #split(split) {
    const rows = [
      ["live", split.live, "var(--reserved)"],
      ["pending: freed, waiting for other streams", split.pending, "var(--pending)"],
      ["cached beside blocks: pinned", split.pinned, "var(--pinned-key)"],
      ["cached in empty segments: returnable", split.whole, "var(--whole-key)"],
      ["cached in expandable segments", split.arena, "var(--whole-key)"],
    ].filter(([name, bytes]) => bytes > 0 || name === "live");
    const list = make("table", "split");
    list.append(make("caption", "", {}, "Reserved bytes by what they are"));
    for (const [name, bytes, color] of rows) {
      const label = make(
        "th",
        "",
        { scope: "row" },
        make("span", "", {}, name),
        bar(bytes / Math.max(split.reserved, 1), color),
      );
      list.append(make("tr", "", {}, label, make("td", "", {}, formatBytes(bytes))));
    }
    const total = make("th", "", { scope: "row" }, "reserved");
    list.append(make("tr", "total", {}, total, make("td", "", {}, formatBytes(split.reserved))));
    return list;
  }

  #lines(lines, live) {
    const list = make("ol", "rows");
    for (const line of lines.slice(0, MOST_LINES)) {
      const site = this.record.head.sites[line.site];
      list.append(
        make(
          "li",
          "",
          {},
          make("span", "name", { title: site }, site),
          make("span", "bytes", {}, formatBytes(line.bytes)),
          bar(line.bytes / Math.max(live, 1)),
          make("span", "quiet", {}, blocksText(line.blocks)),
        ),
      );
    }
    const rest = lines.slice(MOST_LINES);
    if (rest.length) {
      const bytes = rest.reduce((sum, line) => sum + line.bytes, 0);
      list.append(make("li", "quiet", {}, `${rest.length} more lines: ${formatBytes(bytes)}`));
    }
    if (!lines.length) list.append(make("li", "quiet", {}, "nothing is live"));
    return list;
  }

  #blockButton(allocation) {
    const { record, view } = this;
    const site = record.head.sites[record.site[allocation]];
    const label = `${formatBytes(record.size[allocation])} #${allocation} ${site}`;
    const act = () => {
      view.select(allocation);
      this.open("block");
    };
    return button("row", label, act, { title: label });
  }

  #blocks(blocks) {
    const list = make("ol", "rows");
    list.append(...blocks.map((block) => make("li", "", {}, this.#blockButton(block))));
    return list;
  }

  #pinned(segments) {
    const { record } = this;
    const list = make("ol", "rows");
    for (const { span, blocks, cached } of segments) {
      const smallest = blocks.reduce((a, b) => (record.size[b] < record.size[a] ? b : a));
      const where = record.address(record.spanPlace[span]);
      const share = `${formatBytes(cached)} of ${formatBytes(record.spanSize[span])}`;
      const text = `${share} at ${where}: pinned by ${blocksText(blocks.length)}, the smallest:`;
      list.append(make("li", "", {}, make("span", "", {}, text), this.#blockButton(smallest)));
    }
    return list;
  }

  // --- the selected block --------------------------------------------------------------------

  fillBlock() {
    const { view, record } = this;
    const block = view.selected;
    const body = this.#body("block");
    if (block < 0) {
      body.replaceChildren(
        make(
          "p",
          "quiet",
          {},
          "No block is selected. Click one in a chart, or press ] for the ",
          "largest at the moment.",
        ),
      );
      return;
    }
    const tools = make(
      "div",
      "tools",
      {},
      button("plain", "Zoom to its life", () => view.showLife(block)),
      button("plain", "Below", () => view.step(-1), { title: "The block below it in memory ([)" }),
      button("plain", "Above", () => view.step(+1), { title: "The block above it in memory (])" }),
      button("plain", "Clear", () => view.select(-1)),
    );
    body.replaceChildren(
      make(
        "p",
        "where",
        {},
        formatBytes(record.size[block]),
        make(
          "span",
          "quiet",
          {},
          ` · ${record.head.categories[record.category[block]]} (inferred)`,
        ),
      ),
      make("p", "site", {}, record.head.sites[record.site[block]]),
      tools,
      facts(this.#blockFacts(block)),
      make("h3", "", {}, "Who asked for it, innermost first"),
      this.#stack(block),
      make("h3", "", {}, "Neighbours at the moment"),
      this.#neighbours(block),
    );
  }

  #blockFacts(block) {
    const { record, view } = this;
    const [born, freed, done] = [record.born[block], record.freed[block], record.done[block]];
    const end = record.positions;
    const span = record.spanAt(record.place[block], Math.min(born, end - 1));
    const pairs = [
      ["number", `#${block}`],
      [
        "asked for",
        `${formatBytes(record.requested[block])} (${formatCount(record.requested[block])} B)`,
      ],
      ["block", `${formatCount(record.size[block])} B`],
      ["made", this.#when(born && born + record.served[block], "before the recording")],
      ["freed", freed >= end ? "never in this recording" : this.#when(freed, "")],
    ];
    if (done > freed) {
      pairs.push(["block free", done >= end ? "still waiting at the end" : this.#when(done, "")]);
      pairs.push(["waited for", "other streams to be done with it (record_stream)"]);
    }
    pairs.push(["lived", this.#age(born, freed)]);
    if (view.moment >= born && view.moment < freed) {
      pairs.push(["age at the moment", this.#age(born, view.moment)]);
    }
    pairs.push(
      ["stream", record.head.streams[record.stream[block]]],
      ["pool", record.head.pools[record.pool[block]]],
      ["address", record.address(record.place[block])],
    );
    if (span >= 0) {
      const kind = record.spanArena[span] ? "expandable segment, mapped run" : "segment";
      const half = record.spanSmall[span] ? "small" : "large";
      pairs.push([kind, `${formatBytes(record.spanSize[span])}, ${half} blocks`]);
    }
    return pairs;
  }

  #when(position, before) {
    if (position <= 0) return before;
    const seconds = this.record.secondsAt(position);
    const text = `event ${formatCount(position - 1)}`;
    const go = button("link", text, () => this.view.goTo(position));
    return make("span", "", {}, go, seconds === null ? "" : `, ${formatSeconds(seconds)}`);
  }

  #age(from, to) {
    const { record } = this;
    const events = `${formatCount(to - from)} events`;
    const [a, b] = [record.secondsAt(from), record.secondsAt(Math.min(to, record.positions - 1))];
    return a === null ? events : `${events}, ${formatSeconds(b - a)}`;
  }

  #stack(block) {
    const frames = this.record.framesOf(block);
    if (!frames.length) {
      return make(
        "p",
        "quiet",
        {},
        "The recording has no frames of it: work of autograd's threads has none, nor has a ",
        "recording made without stacks. A line named as “backward of” is inferred from what was ",
        "freed next.",
      );
    }
    const list = make("ol", "stack");
    for (const frame of frames) {
      const library = isLibrary(frame.file);
      list.append(
        make(
          "li",
          library ? "library" : "own",
          {},
          make("span", "function", {}, frame.name),
          " ",
          make(
            "span",
            "file",
            { title: `${frame.file}:${frame.line}` },
            `${library ? shortened(frame.file) : baseName(frame.file)}:${frame.line}`,
          ),
        ),
      );
    }
    return list;
  }

  #neighbours(block) {
    const { view, record } = this;
    if (view.moment < record.born[block] || view.moment >= record.done[block]) {
      return make("p", "quiet", {}, "It has no block at the moment chosen.");
    }
    const { below, above } = neighboursOf(record, block, view.moment);
    const list = make("dl", "facts");
    for (const [name, side] of [
      ["above", above],
      ["below", below],
    ]) {
      const cell = make("dd");
      if (!side || side.kind === "edge") cell.append("the edge of its segment");
      else {
        if (side.cached) cell.append(`${formatBytes(side.cached)} cached`);
        if (side.cached && side.allocation >= 0) cell.append(", then ");
        if (side.allocation >= 0) cell.append(this.#blockButton(side.allocation));
      }
      list.append(make("dt", "", {}, name), cell);
    }
    return list;
  }

  // --- search --------------------------------------------------------------------------------

  fillSearch() {
    const { view, record } = this;
    const body = this.#body("search");
    if (!view.matches) {
      body.replaceChildren(
        make(
          "p",
          "quiet",
          {},
          "Type into the search field: words of a file, function, category, ",
          "stream or pool; sizes such as >64MiB or <1MiB; an address 0x…; a number #12.",
        ),
      );
      return;
    }
    const found = summarize(record, view.matches, view.moment, MOST_FOUND);
    const list = make("ol", "rows");
    list.append(...found.largest.map((block) => make("li", "", {}, this.#blockButton(block))));
    const more = found.count - found.largest.length;
    body.replaceChildren(
      make("p", "where", {}, `${formatCount(found.count)} allocations match`),
      make("p", "quiet", {}, `${formatBytes(found.live)} of them live ${momentName(view.moment)}`),
      list,
      more > 0 ? make("p", "quiet", {}, `and ${formatCount(more)} smaller ones`) : "",
    );
  }
}

function blocksText(count) {
  return count === 1 ? "one block" : `${formatCount(count)} blocks`;
}

function capital(text) {
  return text ? text[0].toUpperCase() + text.slice(1) : text;
}

function isLibrary(file) {
  return /site-packages|dist-packages|\/lib\/python3|^</.test(file) || !/\.(py|ipynb)$/.test(file);
}

/** A library's path from the folder of packages on. */
function shortened(file) {
  return file.replace(/^.*(?:site-packages|dist-packages)\//, "");
}
