// Objects: what is not Ready and why, every kind as a table, and each object.

import { discovery, get, objectPath, pages, watch } from './api.js';
import { h, render } from './dom.js';
import { count, plural, since } from './format.js';
import { dot } from './plot.js';
import { objectView } from './object.js';
import { table } from './table.js';

export const objects = { title: 'Objects', search: 'Search objects', mount };

/** Rows that the search for what is not Ready reads of all kinds together. */
const SCANNED_MAX = 50_000;
/** Objects whose conditions are read one by one. */
const EXPLAINED_MAX = 200;
const KINDS_FIRST = ['serving.knative.dev', 'eventing.knative.dev', 'messaging.knative.dev', 'sources.knative.dev', 'flows.knative.dev', '', 'apps', 'batch'];
const DRAW_MS = 120;

/** What a table's row says about its object. */
export function readiness(columns, cells) {
  const at = name => columns.findIndex(one => one.name === name);
  const ready = cells[at('Ready')], reason = cells[at('Reason')] ?? '', status = cells[at('Status')] ?? '';
  if (ready === 'True') return { state: 'ok', reason };
  if (ready === 'False') return { state: 'bad', reason };
  if (ready === 'Unknown') return { state: 'warn', reason };
  const ratio = /^(\d+)\/(\d+)$/.exec(ready ?? '');
  if (ratio) {
    const isDone = ['Completed', 'Succeeded'].includes(status);
    return { state: isDone || ratio[1] === ratio[2] ? 'ok' : 'bad', reason: status || `${ready} ready` };
  }
  if (['Failed', 'Error', 'CrashLoopBackOff'].includes(status)) return { state: 'bad', reason: status };
  return { state: null, reason };
}

const RANK = { bad: 0, warn: 1, ok: 2 };

function mount(main, context) {
  let kinds = [], problem = '', kind = null, rows = [], columns = [], state = '', reading = null, sorted = null, sortedFor = null, fresh = null;
  let view = null, attention = { rows: [], checked: 0, done: false, running: false, limited: false };
  let drawAt = 0;

  const soon = () => {
    if (drawAt) return;
    drawAt = setTimeout(() => { drawAt = 0; context.update(); }, DRAW_MS);
  };
  discovery().then(found => {
    kinds = found;
    route(...last);
  }, error => { problem = error.message; context.update(); });
  let last = [[], new URLSearchParams()];

  const route = (rest, query) => {
    last = [rest, query];
    if (!kinds.length) return;
    const [group, version, plural, ...named] = rest;
    const wanted = kinds.find(one => one.id === `${group}/${version}/${plural}`) ?? kinds.find(one => one.group === (group === 'core' ? '' : group) && one.plural === plural) ?? null;
    const [namespace, name] = wanted?.namespaced ? named : ['', named[0]];
    view?.close();
    view = wanted && name ? objectView(context, wanted, namespace, name, query) : null;
    if (view) return;
    if (wanted !== kind || !reading) follow(wanted);
    if (!wanted) scan();
  };

  /** Lists a kind page by page, then watches it. */
  const follow = async wanted => {
    reading?.abort();
    [kind, rows, columns, sorted, fresh] = [wanted, [], [], null, null];
    if (!wanted) return;
    const own = (reading = new AbortController());
    state = 'reading';
    const byId = new Map();
    const put = row => {
      const meta = row.object.metadata;
      byId.set(meta.uid ?? `${meta.namespace}/${meta.name}`, { cells: row.cells, namespace: meta.namespace ?? '', name: meta.name, created: meta.creationTimestamp });
    };
    const show = () => {
      fresh = byId;
      soon();
    };
    for (let failures = 0; !own.signal.aborted; ) {
      try {
        let version = '';
        byId.clear();
        for await (const page of pages(wanted.path, { table: true, signal: own.signal })) {
          if (page.columnDefinitions?.length) columns = page.columnDefinitions;
          for (const row of page.rows ?? []) put(row);
          version = page.metadata.resourceVersion;
          show();
        }
        state = 'live';
        problem = '';
        show();
        if (!wanted.watchable) return;
        for await (const change of watch(wanted.path, { version, table: true, signal: own.signal })) {
          if (change.type === 'ERROR') break; // the version is too old: list again
          if (change.type === 'BOOKMARK') continue;
          for (const row of change.object.rows ?? []) {
            if (change.type === 'DELETED') byId.delete(row.object.metadata.uid);
            else put(row);
          }
          failures = 0;
          show();
        }
      } catch (error) {
        if (own.signal.aborted) return;
        problem = error.message;
        state = '';
        soon();
        if (error.status === 403 || error.status === 404) return;
      }
      await new Promise(resolve => setTimeout(resolve, Math.min(5000, 500 * 2 ** failures++)));
    }
  };

  /** All kinds that say whether they are Ready. */
  const scan = async () => {
    if (attention.running) return;
    const found = { rows: [], checked: 0, done: false, running: true, limited: false };
    if (attention.done) attention.running = true;
    else attention = found;
    soon();
    for (const one of kinds) {
      if (found.checked >= SCANNED_MAX) { found.limited = true; break; }
      if (one.group.endsWith('k8s.io') && !one.group.startsWith('gateway')) continue;
      try {
        for await (const page of pages(one.path, { table: true })) {
          const defined = page.columnDefinitions ?? [];
          if (!defined.some(column => ['Ready', 'Status'].includes(column.name))) break;
          for (const row of page.rows ?? []) {
            found.checked++;
            const { state: is, reason } = readiness(defined, row.cells);
            if (is === 'bad' || is === 'warn') found.rows.push({ kind: one, namespace: row.object.metadata.namespace ?? '', name: row.object.metadata.name, created: row.object.metadata.creationTimestamp, state: is, reason });
          }
          if (attention === found) soon();
          if (found.checked >= SCANNED_MAX) break;
        }
      } catch {
        // A kind that this caller may not list.
      }
    }
    // Scaled to zero is how it should be.
    const asleep = new Set(found.rows.filter(row => row.reason === 'NoTraffic').map(row => `${row.namespace}/${row.name}`));
    found.rows = found.rows.filter(row => !(['NoTraffic', 'NoHealthyBackends'].includes(row.reason) && asleep.has(`${row.namespace}/${row.name}`)));
    found.rows.sort((a, b) => RANK[a.state] - RANK[b.state] || (a.created < b.created ? 1 : -1));
    for (const row of found.rows.slice(0, EXPLAINED_MAX)) {
      const object = await get(objectPath(row.kind, row.namespace, row.name)).catch(() => null);
      const conditions = object?.status?.conditions ?? [];
      const cause = conditions.find(one => one.type !== 'Ready' && one.status === 'False') ?? conditions.find(one => one.type === 'Ready') ?? conditions.find(one => one.status === 'False');
      Object.assign(row, cause && { reason: cause.reason || row.reason, message: cause.message, type: cause.type, at: cause.lastTransitionTime });
    }
    Object.assign(found, { done: true, running: false });
    attention = found;
    soon();
  };

  const order = () => {
    const text = context.state.filter;
    if (sorted && sortedFor === text) return sorted;
    const judged = rows.map(one => ({ one, ...readiness(columns, one.cells) }));
    sorted = judged.filter(({ one }) => !text || context.matches(one.namespace, one.name, one.cells.join(' ')));
    sorted.sort((a, b) => (RANK[a.state] ?? 2) - (RANK[b.state] ?? 2) || (a.one.namespace < b.one.namespace ? -1 : a.one.namespace > b.one.namespace ? 1 : a.one.name < b.one.name ? -1 : 1));
    sortedFor = text;
    return sorted;
  };

  const kindTable = () => {
    const all = order();
    const shown = columns.map((one, nth) => ({ ...one, nth })).filter(one => one.priority === 0 && one.name !== 'Name');
    const width = one => ({ Ready: '84px', Age: '60px', Reason: 'minmax(0, 1fr)' })[one.name] ?? (one.type === 'integer' ? '116px' : 'minmax(0, 1fr)');
    return table({
      id: kind.id, label: kind.kind, rows: all, update: context.update,
      empty: problem || (state === 'reading' ? 'Reading …' : context.state.filter ? 'No object matches the search.' : `There is no ${kind.kind}.`),
      columns: [...(kind.namespaced ? [{ name: 'Namespace', width: 'minmax(0, .8fr)' }] : []), { name: 'Name', width: 'minmax(0, 1.4fr)' }, ...shown.map(one => ({ name: one.name, width: width(one), number: one.type === 'integer' }))],
      row: ({ one, state: is }) => ({
        key: `${one.namespace}/${one.name}`, href: `#/objects/${kind.id}/${kind.namespaced ? `${one.namespace}/` : ''}${encodeURIComponent(one.name)}`,
        cells: [...(kind.namespaced ? [one.namespace] : []), h('b', { title: one.name }, one.name), ...shown.map(column => cell(column, one, is))],
      }),
    });
  };

  const attentionTable = () => table({
    id: 'attention', label: 'Objects that are not Ready', rows: attention.rows.filter(one => context.matches(one.kind.kind, one.namespace, one.name, one.reason, one.message ?? '')), update: context.update,
    empty: attention.done ? `All ${plural(attention.checked, 'object')} are Ready.` : `${plural(attention.checked, 'object')} checked …`,
    columns: [{ name: 'Kind', width: '124px' }, { name: 'Name', width: 'minmax(0, 1.1fr)' }, { name: 'Reason', width: 'minmax(0, 1fr)' }, { name: 'Why', width: 'minmax(0, 1.9fr)' }, { name: 'For', width: '56px', number: true }],
    row: one => ({
      key: `${one.kind.id}/${one.namespace}/${one.name}`, href: `#/objects/${one.kind.id}/${one.namespace ? `${one.namespace}/` : ''}${encodeURIComponent(one.name)}`,
      cells: [h('span', null, dot(one.state, one.state === 'bad' ? 'not Ready' : 'unknown'), one.kind.kind), h('b', { title: one.name }, one.namespace ? `${one.namespace}/${one.name}` : one.name), one.reason ?? '', one.message ?? '', since(one.at ?? one.created)],
    }),
  });

  const sidebar = () => {
    const groups = new Map();
    for (const one of kinds) {
      if (!groups.has(one.group)) groups.set(one.group, []);
      groups.get(one.group).push(one);
    }
    const rank = name => (KINDS_FIRST.includes(name) ? KINDS_FIRST.indexOf(name) : KINDS_FIRST.length);
    const names = [...groups.keys()].sort((a, b) => rank(a) - rank(b) || a.localeCompare(b));
    const current = view?.kind ?? kind;
    return h('nav', { class: 'kinds', 'aria-label': 'Kinds' },
      h('a', { href: '#/objects', class: 'first', 'aria-current': current ? null : 'page' }, 'Not Ready', attention.rows.length > 0 && h('span', { class: 'tag bad' }, count(attention.rows.length))),
      names.map(name => h('section', { 'data-key': name || 'core' },
        h('h3', null, name || 'core'),
        groups.get(name).map(one => h('a', { href: `#/objects/${one.id}`, 'aria-current': current === one ? 'page' : null }, one.kind)))));
  };

  const update = () => {
    if (fresh) [rows, sorted, fresh] = [[...fresh.values()], null, null];
    const title = view ? null : kind ? h('h2', null, kind.kind, h('span', { class: 'quiet' }, `${plural(rows.length, 'object')}${state === 'reading' ? ' so far' : ''}`), state === 'live' && kind.watchable && h('span', { class: 'quiet' }, dot('ok', 'watched'), 'watched'))
      : h('h2', null, 'Not Ready, and why', h('span', { class: 'quiet' }, attention.limited ? `only the first ${count(SCANNED_MAX)} objects were checked` : `${plural(attention.checked, 'object')} checked`), h('button', { type: 'button', class: 'icon', onclick: scan }, attention.running ? 'Checking …' : 'Check again'));
    render(main,
      h('h1', { class: 'hidden' }, 'Objects'),
      h('div', { class: 'objects' }, sidebar(),
        h('section', { class: 'card flush', 'aria-label': kind?.kind ?? 'Not Ready' }, title,
          problem && !view && h('p', { class: 'note bad', role: 'alert' }, problem),
          view ? view.draw() : kind ? kindTable() : kinds.length ? attentionTable() : h('p', { class: 'loading' }, 'Reading the kinds …'))));
  };
  return {
    update, open: route,
    escape: () => { if (view) history.back(); },
    close: () => { reading?.abort(); view?.close(); clearTimeout(drawAt); },
  };
}

function cell(column, one, is) {
  const value = one.cells[column.nth];
  if (column.name === 'Age') return since(one.created);
  if (column.name === 'Ready' && is) return h('span', null, dot(is, String(value)), String(value));
  return value === null || value === undefined ? '' : String(value);
}
