// Dead letters: which, why, and sending them again.

import { condition, get, lines, may, patch, send } from './api.js';
import { h, toast } from './dom.js';
import { now } from './figures.js';
import { clock, count, plural } from './format.js';
import { table } from './table.js';
import { eventDetail, readTrace } from './trace.js';

const LIMIT = 5000;
/** The log is read again at most this often while events are given up. */
const READ_MS = 5000;
const READY_MS = 30_000;
const OBJECTS = { trigger: ['eventing.knative.dev', 'v1', 'triggers'], subscription: ['messaging.knative.dev', 'v1', 'subscriptions'] };

export function deadLetters(context) {
  let all = [], omitted = 0, problem = '', isReading = false, read = 0, seen = 0;
  const given = () => (now.total.events ? now.total.events.dead_letters + now.total.events.dropped_all : 0);
  let subscriber = '', selected = null, event = null, progress = null, allowed = null;

  const refresh = async () => {
    if (isReading) return;
    isReading = true;
    seen = given();
    try {
      const answer = await get(`/debug/events/dead-letters?limit=${LIMIT}`);
      all = answer.deadLetters.reverse();
      omitted = answer.omitted;
      problem = '';
    } catch (error) {
      problem = error.message;
    }
    read = Date.now();
    isReading = false;
    context.update();
  };

  const choose = async id => {
    subscriber = id;
    allowed = null;
    context.update();
    if (!id) return;
    const [kind, namespace, name] = id.split('/');
    const [group, , plural] = OBJECTS[kind] ?? []; // gone since
    const granted = group ? await may('patch', group, plural, namespace, name).catch(() => false) : false;
    if (subscriber !== id) return; // chosen anew meanwhile
    allowed = granted;
    context.update();
  };

  const look = async one => {
    selected = selected === keyOf(one) ? null : keyOf(one);
    event = null;
    context.update();
    if (!selected) return;
    const found = await readTrace({ id: one.id, source: one.source, data: 'true' }).catch(() => []);
    if (selected !== keyOf(one)) return; // chosen anew meanwhile
    event = found.find(other => other.core === one.core && other.position === one.position) ?? found[0] ?? null;
    context.update();
  };

  /** Follows a replay to its end. */
  const run = async (from, { rate = 0, dry = false } = {}) => {
    const to = subscriber;
    const query = new URLSearchParams({ trigger: to, from, dry_run: dry, rate });
    progress = { sent: 0, done: false, dry, from, expected: from === 'dead-letters' ? open().length : 0 };
    context.update();
    try {
      for await (const line of lines(await send(`/debug/events/replay?${query}`, { method: 'POST' }))) {
        if (!line) continue;
        const said = JSON.parse(line);
        if (said.error) throw new Error(said.error);
        Object.assign(progress, said);
        context.update();
      }
      if (!progress.done) throw new Error('the appliance ended before it was done');
      toast(`${plural(progress.sent, 'event')} ${dry ? 'would be' : progress.sent === 1 ? 'was' : 'were'} sent to ${to}.`);
    } catch (error) {
      progress.error = error.message;
      toast(`Not all events were sent: ${error.message}`, 'bad');
    }
    context.update();
    if (!dry) setTimeout(refresh, 700);
  };

  const redirect = async uri => {
    const of = subscriber;
    const [kind, namespace, name] = of.split('/');
    const [group, version, plural] = OBJECTS[kind];
    const path = `/apis/${group}/${version}/namespaces/${namespace}/${plural}/${name}`;
    try {
      await patch(path, { spec: { subscriber: { ref: null, uri } } });
      const began = Date.now();
      for (;;) {
        const object = await get(path);
        const ready = object.status?.observedGeneration === object.metadata.generation && condition(object);
        if (ready?.status === 'True') return toast(`${of} sends to ${uri} now.`);
        if (Date.now() - began > READY_MS) throw new Error(`it was changed and is not Ready: ${ready?.message ?? 'not reconciled yet'}`);
        await new Promise(resolve => setTimeout(resolve, 200));
      }
    } catch (error) {
      return toast(`${of}: ${error.message}`, 'bad');
    }
  };

  const idOf = one => `${one.kind.toLowerCase()}/${one.subscriber}`;
  const keyOf = one => `${one.core}:${one.position}:${one.subscriber}`;
  const open = () => all.filter(one => !subscriber || idOf(one) === subscriber);

  const draw = () => {
    if (read && !isReading && given() !== seen && Date.now() - read > READ_MS) refresh();
    const rows = open().filter(one => context.matches(one.subscriber, one.id, one.source, one.type, one.event));
    const counts = new Map();
    for (const one of all) counts.set(idOf(one), (counts.get(idOf(one)) ?? 0) + 1);
    const known = new Set([...counts.keys(), ...now.subscribers.keys()]);
    return h('div', { class: ['split', (selected || subscriber) && 'has-detail'] },
      h('section', { class: 'card flush', 'aria-label': 'Dead letters' },
        h('div', { class: 'filters' },
          h('select', { class: 'field', 'aria-label': 'Subscriber', onchange: change => choose(change.target.value) },
            h('option', { value: '' }, `all subscribers (${count(all.length)})`),
            [...known].sort().map(id => h('option', { value: id, selected: id === subscriber }, `${id} (${count(counts.get(id) ?? 0)})`))),
          h('button', { class: 'button', type: 'button', onclick: refresh }, isReading ? 'Reading …' : 'Read again')),
        problem && h('p', { class: 'note bad', role: 'alert' }, problem),
        omitted > 0 && h('p', { class: 'note' }, `${count(omitted)} older ones are not listed; a redrive sends them too.`),
        table({
          id: 'dead-letters', label: 'Open dead letters, the newest first', rows, update: context.update,
          empty: read ? 'There are no open dead letters. Everything arrived.' : 'Reading the log …',
          columns: [{ name: 'Given up', width: '84px' }, ...(subscriber ? [] : [{ name: 'Subscriber' }]), { name: 'Type', width: 'minmax(0, 1.2fr)' }, { name: 'Id' }, ...(selected || subscriber ? [] : [{ name: 'Source' }]), { name: 'Outcome', width: '112px' }],
          row: one => ({
            key: keyOf(one), selected: selected === keyOf(one), onclick: () => look(one),
            cells: [clock(one.time), ...(subscriber ? [] : [one.subscriber]), one.type, one.id, ...(selected || subscriber ? [] : [one.source]), h('span', { class: ['tag', one.event === 'dropped' ? 'rose' : 'bad'] }, one.event)],
          }),
        })),
      (selected || subscriber) && h('aside', { class: 'card detail wide', 'aria-label': 'Details' },
        subscriber && actions(),
        selected && (event ? h('div', { class: 'event' }, eventDetail(event, () => { selected = null; context.update(); })) : h('p', { class: 'quiet' }, 'Reading the event …'))));
  };

  const actions = () => {
    const isRunning = progress && !progress.done && !progress.error;
    const locked = !context.state.unlocked ? 'Read-only: allow actions at the top right' : allowed === false ? `The API's roles do not let you change ${subscriber}` : '';
    const disabled = Boolean(locked) || isRunning;
    const number = open().length;
    const form = handler => event => { event.preventDefault(); handler(new FormData(event.target)); };
    return h('section', { class: 'actions', 'aria-label': `Actions for ${subscriber}` },
      h('h2', null, h('span', { class: 'name' }, subscriber)),
      locked && h('p', { class: 'note warn' }, locked),
      h('form', { onsubmit: form(data => run('dead-letters', { rate: data.get('rate') || 0 })) },
        h('p', null, h('b', null, 'Redrive'), h('span', { class: 'quiet' }, ' sends its open dead letters again.')),
        h('div', { class: 'tools' },
          h('label', null, 'at most ', h('input', { class: 'field tiny', name: 'rate', type: 'number', min: 0, placeholder: '∞', 'aria-label': 'Events a second' }), ' /s'),
          h('button', { class: 'primary', disabled: disabled || !number, id: 'redrive' }, read ? `Redrive ${count(number)}` : 'Redrive'))),
      h('form', { onsubmit: form(data => run(data.get('from'), { dry: data.get('dry') === 'on' })) },
        h('p', null, h('b', null, 'Replay'), h('span', { class: 'quiet' }, ' sends its events since a time again.')),
        h('div', { class: 'tools' },
          h('input', { class: 'field', name: 'from', required: true, placeholder: '10m, a time, earliest', 'aria-label': 'From' }),
          h('label', null, h('input', { type: 'checkbox', name: 'dry', checked: true }), ' only count'),
          h('button', { class: 'button', disabled }, 'Replay'))),
      h('form', { onsubmit: form(data => redirect(data.get('uri'))) },
        h('p', null, h('b', null, 'Subscriber'), h('span', { class: 'quiet mono target' }, ` ${now.subscribers.get(subscriber)?.target ?? ''}`)),
        h('div', { class: 'tools' },
          h('input', { class: 'field', name: 'uri', type: 'url', required: true, placeholder: 'http://…', 'aria-label': 'New URI of the subscriber' }),
          h('button', { class: 'button', disabled }, 'Send there'))),
      progress && h('div', { class: 'progress', role: 'status' },
        h('p', null, progress.error ? h('span', { class: 'bad' }, progress.error) : `${count(progress.sent)} ${progress.dry ? 'would be sent' : 'sent'}${progress.done ? '' : ' so far'}`),
        h('progress', { max: Math.max(progress.expected, progress.sent, 1), value: progress.done ? Math.max(progress.expected, progress.sent, 1) : progress.sent, 'aria-label': 'Progress' })));
  };

  return {
    draw,
    count: () => all.length,
    open: (_, query) => { if (query.get('subscriber')) choose(query.get('subscriber')); refresh(); },
    escape: () => { if (selected) selected = null; else choose(''); },
  };
}
