// Elements: made once, kept, and changed in place. Texts of others only ever become text nodes.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** An element; a function among the attributes is a listener, `false` and `null` leave the attribute out. */
export function element(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** As `element`, of SVG. */
export function shape(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

/** Changes a text where it is another: what stays the same is not read out again. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Changes the class of a node where it is another. */
export function setClass(node, name) {
  if (node.getAttribute("class") !== name) node.setAttribute("class", name);
}

const kept = new WeakMap();

/**
 * Makes the children of `parent` those of `items`, in their order. `make(item)` gives `{ node, update }`
 * for a key that is new; what is known stays, with its focus and its state, and is updated.
 */
export function sync(parent, items, keyOf, make) {
  const before = kept.get(parent) ?? new Map();
  const after = new Map();
  for (const item of items) {
    const key = keyOf(item);
    const part = before.get(key) ?? make(item);
    part.update?.(item);
    after.set(key, part);
  }
  for (const [key, part] of before) if (!after.has(key)) part.node.remove();
  let at = 0;
  for (const { node } of after.values()) {
    if (parent.children[at] !== node) parent.insertBefore(node, parent.children[at] ?? null);
    at += 1;
  }
  kept.set(parent, after);
}

/** Shows `hint`, and a shadow at the edge, where `content` goes on beyond the right edge of `scroller`. */
export function hintAtMore(scroller, content, hint) {
  const look = () => {
    const beyond = scroller.scrollWidth - scroller.clientWidth - scroller.scrollLeft > 1;
    scroller.classList.toggle("more", beyond);
    // Once seen it stays where it is, or the page would jump while somebody scrolls.
    hint.hidden = scroller.scrollWidth <= scroller.clientWidth;
  };
  scroller.addEventListener("scroll", look, { passive: true });
  const observer = new ResizeObserver(look);
  observer.observe(scroller);
  observer.observe(content);
}
