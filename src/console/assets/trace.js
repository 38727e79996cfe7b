// Traces: the newest events with what became of them, and one event as a timeline.

import { get } from './api.js';
import { h, s } from './dom.js';
import { clock, duration, plural } from './format.js';
import { table } from './table.js';

const LIMIT = 500;
const OUTCOMES = { delivered: 'ok', filtered: 'idle', 'dead-lettered': 'bad', dropped: 'rose', pending: 'amber', 'passed over': 'idle' };

export const outcomeTone = outcome => OUTCOMES[outcome] ?? 'idle';

export const readTrace = query => get(`/debug/events/trace?${new URLSearchParams(query)}`).then(answer => answer.events);

export function traces(context) {
  let all = [], problem = '', isReading = false, wanted = {}, read = 0, selected = null;
  const refresh = async () => {
    const asked = wanted;
    isReading = true;
    context.update();
    try {
      const found = await readTrace({ limit: LIMIT, ...asked });
      if (asked !== wanted) return; // searched anew
      all = found.sort((a, b) => (a.accepted < b.accepted ? 1 : -1));
      problem = '';
    } catch (error) {
      if (asked !== wanted) return;
      problem = error.message;
    }
    read = Date.now();
    isReading = false;
    if (!selected && all.length && (wanted.id || wanted.source)) selected = idOf(all[0]);
    context.update();
  };
  const open = (_, query) => {
    wanted = Object.fromEntries(['id', 'source', 'since'].map(key => [key, query.get(key)]).filter(([, value]) => value));
    selected = query.get('at');
    refresh();
  };
  const tools = () => h('form', { class: 'tools', onsubmit: event => { event.preventDefault(); const form = new FormData(event.target); const query = new URLSearchParams([...form].filter(([, value]) => value)); const hash = `#/events/trace?${query}`; if (location.hash === hash) refresh(); else location.hash = hash; } },
    h('input', { class: 'field', name: 'id', placeholder: 'event id', value: wanted.id ?? '', 'aria-label': 'Event id' }),
    h('input', { class: 'field', name: 'source', placeholder: 'source', value: wanted.source ?? '', 'aria-label': 'Event source' }),
    h('input', { class: 'field short', name: 'since', placeholder: 'since 10m', value: wanted.since ?? '', 'aria-label': 'Since a time or an age' }),
    h('button', { class: 'button' }, isReading ? 'Reading …' : 'Find'));
  const draw = () => {
    const rows = all.filter(one => context.matches(one.stream, one.attributes.id, one.attributes.type, one.attributes.source, ...one.subscribers.map(sub => sub.outcome)));
    const chosen = all.find(one => idOf(one) === selected);
    return h('div', { class: ['split', chosen && 'has-detail'] },
      h('section', { class: 'card flush', 'aria-label': 'Events' },
        problem && h('p', { class: 'note bad', role: 'alert' }, problem),
        table({
          id: 'traces', label: 'Events, the newest first', rows, update: context.update,
          empty: read ? 'No such event is in the log.' : 'Reading the log …',
          columns: [{ name: 'Accepted', width: '84px' }, { name: 'Type', width: 'minmax(0, 1.3fr)' }, { name: 'Id' }, ...(chosen ? [] : [{ name: 'Source' }, { name: 'Stream' }]), { name: 'Outcomes', width: 'minmax(0, 1.2fr)' }],
          row: one => ({
            key: idOf(one), selected: idOf(one) === selected,
            onclick: () => { selected = selected === idOf(one) ? null : idOf(one); context.update(); },
            cells: [clock(one.accepted), one.attributes.type, one.attributes.id, ...(chosen ? [] : [one.attributes.source, one.stream.replace(/^\/(brokers|channels)\//, '')]), chips(one.subscribers)],
          }),
        })),
      chosen && h('aside', { class: 'card detail wide', 'aria-label': 'Event' }, eventDetail(chosen, () => { selected = null; context.update(); })));
  };
  return { draw, tools, open, escape: () => (selected = null) };
}

const idOf = one => `${one.core}:${one.position}`;

function chips(subscribers) {
  const counts = new Map();
  for (const { outcome } of subscribers) counts.set(outcome, (counts.get(outcome) ?? 0) + 1);
  return [...counts].map(([outcome, number]) => h('span', { class: ['tag', outcomeTone(outcome)] }, number > 1 ? `${number} ${outcome}` : outcome));
}

/** One event: its attributes, and a lane for each subscriber. */
export function eventDetail(event, close) {
  const { id, source, type, ...others } = event.attributes;
  return [
    h('h2', null, h('span', { class: 'name' }, type), close && h('button', { class: 'icon', type: 'button', 'aria-label': 'Close', onclick: close }, '✕')),
    h('dl', { class: 'pairs' }, [['id', id], ['source', source], ['stream', event.stream], ['accepted', event.accepted], ['position', `${event.core}:${event.position}${event.replay ? ', a replay' : ''}`], ...Object.entries(others)].map(([name, value]) => [h('dt', null, name), h('dd', { class: 'mono' }, value)])),
    event.data && h('pre', { class: 'yaml data', tabindex: 0, 'aria-label': 'Data' }, event.data),
    timeline(event),
    [...event.subscribers].sort((a, b) => b.notes.length - a.notes.length).map(one => h('section', { class: 'lane', 'data-key': one.subscriber },
      h('p', null, h('b', null, one.subscriber), ' ', h('span', { class: ['tag', outcomeTone(one.outcome)] }, one.outcome)),
      h('ol', null, one.notes.map(note => h('li', null, h('span', { class: 'mono quiet' }, note.time.slice(11, 23)), ' ', said(note)))))),
  ];
}

function said(note) {
  if (note.attempt === undefined) return note.event;
  const tone = note.status >= 200 && note.status < 300 ? 'ok' : 'bad';
  return [`${note.event} ${note.attempt}: `, h('b', { class: tone }, note.error ?? note.status), h('span', { class: 'quiet' }, ` after ${duration(note.latency_ms * 1000)}`)];
}

/** Attempts as bars from the acceptance of the event to its last note. */
function timeline(event) {
  const begin = Date.parse(event.accepted);
  const lanes = event.subscribers.filter(one => one.notes.length).sort((a, b) => b.notes.length - a.notes.length);
  if (!lanes.length) return h('p', { class: 'quiet' }, plural(event.subscribers.length, 'subscriber'), ', none with an attempt.');
  const ends = lanes.flatMap(one => one.notes.map(note => Date.parse(note.time) - begin));
  const longest = Math.max(...lanes.flatMap(one => one.notes.map(note => note.latency_ms ?? 0)));
  const span = Math.max(1, longest, ...ends) * 1.04;
  const width = 420, height = lanes.length * 36 + 22, x = ms => 2 + (Math.max(0, ms) / span) * (width - 8);
  return s('svg', { class: 'timeline', viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': `Timeline over ${duration(span * 1000)}` },
    [0, 0.25, 0.5, 0.75, 1].map(part => s('g', null, s('line', { class: 'grid', x1: x(span * part), x2: x(span * part), y1: 0, y2: height - 16 }), s('text', { x: x(span * part), y: height - 4, 'text-anchor': part === 0 ? 'start' : part === 1 ? 'end' : 'middle' }, duration(span * part * 1000)))),
    lanes.map((one, nth) => s('g', { transform: `translate(0,${nth * 36 + 15})` },
      s('text', { class: 'lane-name', x: 2, y: -3 }, one.subscriber),
      s('line', { class: 'rail', x1: 2, x2: width - 6, y1: 9, y2: 9 }),
      one.notes.map(note => {
        const end = Date.parse(note.time) - begin, took = note.latency_ms ?? 0;
        const ok = note.status >= 200 && note.status < 300;
        const tone = note.attempt === undefined ? outcomeTone(note.event) : ok ? 'ok' : 'bad';
        if (note.attempt === undefined) return s('circle', { class: tone, cx: x(end), cy: 9, r: 4 }, s('title', null, `${one.subscriber}: ${note.event}`));
        return s('rect', { class: [tone, note.event !== 'attempt' && 'second'], x: x(end - took), y: 2, height: 14, width: Math.max(3, x(end) - x(end - took)), rx: 2 }, s('title', null, `${one.subscriber}: ${note.event} ${note.attempt}, ${note.error ?? note.status}, ${duration(took * 1000)}`));
      }))));
}
