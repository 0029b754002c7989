// The keyboard: one table for what keys do and for the help that lists them.

/** [keys, what they do, how they are written]; `act` gets the view and the page's parts. */
export const KEYS = [
  [["+", "="], "zoom in", "+", ({ view }) => view.zoom(0.5, centre(view))],
  [["-", "_"], "zoom out", "−", ({ view }) => view.zoom(2, centre(view))],
  [["ArrowLeft"], "move left (with Shift: a whole view)", "←", pan(-1)],
  [["ArrowRight"], "move right (with Shift: a whole view)", "→", pan(+1)],
  [["0"], "show everything", "0", ({ view }) => view.fit()],
  [["p"], "go to the peak of live bytes", "p", ({ view }) => view.goTo(view.record.peak)],
  [[","], "one event back", ",", ({ view }) => view.goTo(view.moment - 1)],
  [["."], "one event on", ".", ({ view }) => view.goTo(view.moment + 1)],
  [["["], "select the block below in memory", "[", ({ view, panel }) => step(view, panel, -1)],
  [
    ["]"],
    "select the block above (the largest, if none is)",
    "]",
    ({ view, panel }) => step(view, panel, +1),
  ],
  [
    ["z"],
    "zoom to the life of the selected block",
    "z",
    ({ view }) => view.selected >= 0 && view.showLife(view.selected),
  ],
  [["PageUp"], "addresses: zoom in", "Page Up", ({ view }) => view.zoomPlaces(0.5, middle(view))],
  [
    ["PageDown"],
    "addresses: zoom out",
    "Page Down",
    ({ view }) => view.zoomPlaces(2, middle(view)),
  ],
  [["g"], "colour by the next grouping", "g", ({ controls }) => controls.nextGrouping()],
  [["x"], "axis of events or of time", "x", ({ controls }) => controls.otherAxis()],
  [["/"], "search", "/", ({ controls }) => controls.search()],
  [["t"], "dark or light", "t", ({ controls }) => controls.otherTheme()],
  [["?"], "this help", "?", ({ controls }) => controls.help()],
  [["Escape"], "clear the selection, then the search", "Esc", ({ controls }) => controls.escape()],
];

function pan(direction) {
  return ({ view, shift }) => view.pan(direction * (shift ? 1 : 0.2));
}

/** The moment if it is in view, so that zooming closes in on it; else the middle. */
function centre(view) {
  const x = view.axis.x(view.moment);
  return x >= view.x0 && x <= view.x1 ? x : (view.x0 + view.x1) / 2;
}

function middle(view) {
  const { selected, record, low, high } = view;
  const place = selected >= 0 ? record.place[selected] : -1;
  return place >= low && place <= high ? place : (low + high) / 2;
}

function step(view, panel, direction) {
  view.step(direction);
  panel.open("block");
}

/** Lets keys act wherever nothing is being typed. */
export function listenToKeys(parts) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target.closest?.("input, textarea, select, dialog");
    if (typing && event.key !== "Escape") return;
    const found = KEYS.find(([keys]) => keys.includes(event.key));
    if (!found || (event.target.closest?.("dialog") && event.key === "Escape")) return;
    event.preventDefault();
    found[3]({ ...parts, shift: event.shiftKey });
  });
}
