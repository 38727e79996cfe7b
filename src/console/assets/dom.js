// Elements, and updates of a tree in place: focus, selection and scroll positions survive a redraw.

const SVG = 'http://www.w3.org/2000/svg';

/**
 * An element. Attributes: `on…` are handlers, `class` may be an array, false and null leave an attribute out. `value` is where
 * an input begins, `current` what it has to show.
 */
export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same in SVG. */
export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith('on')) element[name] = value;
    else if (name === 'style') for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    else if (name === 'current') element.value = element.current = value;
    else element.setAttribute(name, Array.isArray(value) ? value.filter(Boolean).join(' ') : value === true ? '' : value);
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) append(element, child);
    else element.append(child instanceof Node ? child : String(child));
  }
}

const HANDLERS = ['onclick', 'oninput', 'onchange', 'onsubmit', 'onscroll'];

/** Makes the children of `target` equal to `wanted`, and keeps the elements that are there. */
export function render(target, ...wanted) {
  const holder = document.createDocumentFragment();
  append(holder, wanted);
  morphChildren(target, holder);
}

function morphChildren(target, wanted) {
  const keyed = new Map();
  for (const child of target.children) if (child.dataset?.key) keyed.set(child.dataset.key, child);
  let here = target.firstChild;
  for (const next of [...wanted.childNodes]) {
    const key = next.dataset?.key;
    const known = key ? keyed.get(key) : undefined;
    if (known && known !== here) target.insertBefore(known, here);
    const current = known ?? here;
    if (current && isSame(current, next)) {
      morph(current, next);
      here = current.nextSibling;
    } else {
      target.insertBefore(next, here);
    }
  }
  while (here) {
    const gone = here;
    here = here.nextSibling;
    gone.remove();
  }
}

const isSame = (one, other) => one.nodeName === other.nodeName && one.dataset?.key === other.dataset?.key;

function morph(current, next) {
  if (current.nodeType !== Node.ELEMENT_NODE) {
    if (current.nodeValue !== next.nodeValue) current.nodeValue = next.nodeValue;
    return;
  }
  for (const { name } of [...current.attributes]) {
    if (!next.hasAttribute(name) && name !== 'style') current.removeAttribute(name);
  }
  for (const { name, value } of next.attributes) {
    if (name !== 'style' && current.getAttribute(name) !== value) current.setAttribute(name, value);
  }
  if (current.style && current.style.cssText !== next.style.cssText) current.style.cssText = next.style.cssText;
  for (const name of HANDLERS) if (current[name] !== next[name]) current[name] = next[name];
  if (next.current !== undefined && current !== document.activeElement && current.value !== next.current) current.value = next.current;
  morphChildren(current, next);
}

/** Shows a message for a few seconds; screen readers read it. */
export function toast(text, kind = 'info') {
  const message = h('div', { class: ['toast', kind] }, text);
  document.getElementById('status').append(message);
  setTimeout(() => message.remove(), kind === 'bad' ? 9000 : 5000);
}
