// Small parts of the page. Text goes in as text: nothing from the file is ever parsed as markup.
import { visible } from "./units.js";

/** An element with a class, properties, and children that are elements or text. */
export function make(tag, kind = "", properties = {}, ...children) {
  const element = document.createElement(tag);
  if (kind) element.className = kind;
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "title") element.title = visible(value);
    else if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.map((child) => (child instanceof Node ? child : visible(child))));
  return element;
}

/** A button that does something. */
export function button(kind, label, act, properties = {}) {
  return make("button", kind, { type: "button", onclick: act, ...properties }, label);
}

/** A definition list of [term, description] pairs; descriptions are text or elements. */
export function facts(pairs) {
  const list = make("dl", "facts");
  for (const [term, description] of pairs) {
    list.append(make("dt", "", {}, term), make("dd", "", {}, description));
  }
  return list;
}

/** A bar as wide as a share of the whole. */
export function bar(share, color) {
  const fill = make("span", "bar-fill");
  fill.style.width = `${Math.max(Math.min(share, 1) * 100, 0.5)}%`;
  if (color) fill.style.background = color;
  return make("span", "bar", { ariaHidden: "true" }, fill);
}

const EVENTS = /\bevents? \d+(?:,\d{3})*(?:(?:, | and | to )\d+(?:,\d{3})*)*/g;

/** A sentence in which `event 1,234`, or each of `events 5, 1,234 and 7`, leads to that event. */
export function sentence(text, go) {
  const parts = [];
  let from = 0;
  for (const match of text.matchAll(EVENTS)) {
    parts.push(text.slice(from, match.index));
    for (const word of match[0].split(/(events (?=\d)|, | and | to )/)) {
      const event = Number(word.replace("event ", "").replaceAll(",", ""));
      const leads = word && /\d/.test(word);
      parts.push(leads ? button("link", word, () => go(event + 1)) : word);
    }
    from = match.index + match[0].length;
  }
  parts.push(text.slice(from));
  return make("span", "", {}, ...parts);
}
