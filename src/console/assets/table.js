// A table of any length: only the rows in sight are elements.

import { h } from './dom.js';

const ROW = 32;
const SPARE = 8;
const scrolled = new Map();

/**
 * `columns`: `[{ name, width, number }]`; `row(one, nth)` answers `{ key, cells, href, onclick, selected }`.
 * `id` keeps the scroll position, `update` draws again.
 */
export function table({ id, label, columns, rows, row, update, empty }) {
  const known = scrolled.get(id) ?? { top: 0, height: 640 };
  const first = Math.max(0, Math.min(rows.length, Math.floor(known.top / ROW) - SPARE));
  const last = Math.min(rows.length, Math.ceil((known.top + known.height) / ROW) + SPARE);
  const template = columns.map(one => one.width ?? 'minmax(0, 1fr)').join(' ');
  const onscroll = event => {
    const { scrollTop, clientHeight } = event.target;
    const moved = Math.floor(scrollTop / ROW) !== Math.floor((scrolled.get(id)?.top ?? 0) / ROW) || clientHeight !== scrolled.get(id)?.height;
    scrolled.set(id, { top: scrollTop, height: clientHeight });
    if (moved) requestAnimationFrame(update);
  };
  const drawn = rows.slice(first, last).map((one, nth) => {
    const { key, cells, href, onclick, selected } = row(one, first + nth);
    return h(href ? 'a' : 'div', { class: ['row', selected && 'selected'], 'data-key': key, 'data-row': '', tabindex: 0, role: 'row', 'aria-rowindex': first + nth + 2, 'aria-selected': selected ? 'true' : null, href, onclick, style: { 'grid-template-columns': template } },
      cells.map((cell, column) => h('span', { class: ['cell-text', columns[column].number && 'number'], role: 'cell', title: typeof cell === 'string' ? cell : null }, cell)));
  });
  return h('div', { class: 'table', role: 'table', 'aria-label': label, 'aria-rowcount': rows.length + 1, 'data-key': id },
    h('div', { class: 'row head', role: 'row', 'aria-rowindex': 1, style: { 'grid-template-columns': template } },
      columns.map(one => h('span', { class: ['cell-text', one.number && 'number'], role: 'columnheader' }, one.name))),
    h('div', { class: 'rows', role: 'rowgroup', onscroll },
      rows.length ? h('div', { class: 'rows-all', role: 'presentation', style: { height: `${rows.length * ROW}px` } },
        h('div', { class: 'rows-shown', role: 'presentation', style: { transform: `translateY(${first * ROW}px)` } }, drawn))
        : h('p', { class: 'empty' }, empty)));
}
