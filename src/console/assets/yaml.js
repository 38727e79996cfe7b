// An object as YAML, as kubectl prints it. Secrets show no values.

import { h } from './dom.js';

const PLAIN = /^[A-Za-z_./][\w./ +@%()-]*$/;
const WORD = /^(true|false|null|yes|no|on|off|y|n|~)$/i;

function scalar(value, indent) {
  if (value === null || typeof value === 'number' || typeof value === 'boolean') return h('span', { class: 'y-word' }, String(value));
  if (value.includes('\n')) {
    const block = value.replace(/\n$/, '').split('\n').map(line => `${indent}${line}`).join('\n');
    return h('span', { class: 'y-text' }, `|${value.endsWith('\n') ? '' : '-'}\n${block}`);
  }
  const isPlain = PLAIN.test(value) && !WORD.test(value) && !/: |\s$|:$| #/.test(value);
  return h('span', { class: 'y-text' }, isPlain ? value : JSON.stringify(value));
}

function write(value, indent, out) {
  if (Array.isArray(value)) {
    if (!value.length) return out.push(' []\n');
    out.push('\n');
    for (const one of value) {
      out.push(`${indent}-`);
      item(one, `${indent}  `, out);
    }
  } else if (value && typeof value === 'object') {
    if (!Object.keys(value).length) return out.push(' {}\n');
    out.push('\n');
    entries(value, indent, out);
  } else out.push(' ', scalar(value, indent), '\n');
  return undefined;
}

function item(one, indent, out) {
  const isMap = one && typeof one === 'object' && !Array.isArray(one) && Object.keys(one).length > 0;
  if (!isMap) return write(one, indent, out);
  out.push(' ');
  return entries(one, indent, out, true);
}

function entries(value, indent, out, isFirst = false) {
  for (const [key, one] of Object.entries(value)) {
    out.push(isFirst ? '' : indent, h('span', { class: 'y-key' }, PLAIN.test(key) || /^[\w./-]+$/.test(key) ? key : JSON.stringify(key)), ':');
    isFirst = false;
    write(one, Array.isArray(one) ? indent : `${indent}  `, out);
  }
}

/** Without what only the server reads, and without the values of a Secret. */
function shown(object) {
  const { managedFields, ...metadata } = object.metadata ?? {};
  const copy = { apiVersion: object.apiVersion, kind: object.kind, ...object, metadata };
  if (object.kind === 'Secret') {
    const mask = fields => fields && Object.fromEntries(Object.entries(fields).map(([key, value]) => [key, `<${Math.floor((value.length * 3) / 4)} bytes, not shown>`]));
    Object.assign(copy, { data: mask(object.data), stringData: mask(object.stringData) });
    const last = 'kubectl.kubernetes.io/last-applied-configuration';
    if (metadata.annotations?.[last]) copy.metadata = { ...metadata, annotations: { ...metadata.annotations, [last]: '<not shown>' } };
    for (const key of ['data', 'stringData']) if (!copy[key]) delete copy[key];
  }
  return copy;
}

export function yaml(object) {
  const out = [];
  entries(shown(object), '', out);
  return h('pre', { class: 'yaml', tabindex: 0, 'aria-label': 'YAML' }, out);
}
