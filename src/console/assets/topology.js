// Source → Broker or Channel → Trigger or Subscription → subscriber → reply and dead letter, as a drawn graph.

import { condition } from './api.js';
import { h, s } from './dom.js';
import { history, now } from './figures.js';
import { count, percent, plural, rate } from './format.js';
import { sparkline, stack, tile } from './plot.js';

const NODE = { width: 176, height: 48, gap: 16 };
/** Room at the left and the right, for replies on their way back. */
const MARGIN = 26;
const COLUMNS = ['Sources', 'Brokers and Channels', 'Triggers and Subscriptions', 'Subscribers and dead letter sinks'];
/** Nodes of a column that are drawn; a search finds the others. */
const COLUMN_MAX = 40;

export function topology(context, model) {
  let selected = null;
  const draw = () => {
    if (!model.read) return h('p', { class: 'loading' }, 'Reading Brokers, Channels and Triggers …');
    const graph = build(model);
    if (!graph.nodes.size) return h('p', { class: 'empty' }, 'There is no Broker, Channel or source yet. docs/tutorials/first-broker.md makes one.');
    const laid = layout(graph, context);
    const chosen = graph.nodes.get(selected);
    const select = id => { selected = selected === id ? null : id; context.update(); };
    return h('div', null, tiles(), h('div', { class: ['topology', chosen && 'has-detail'] },
      h('section', { class: 'card graph', 'aria-label': 'Topology of events' }, drawing(graph, laid, selected, select)),
      chosen && detail(chosen, graph, () => select(selected))));
  };
  return { draw, escape: () => (selected = null) };
}

function tiles() {
  const { accepted, delivered, pending, dead_lettered, dropped, dead_letters, dropped_all } = now.total.events;
  const given = dead_letters + dropped_all;
  return h('div', { class: 'tiles four' },
    tile('Accepted', rate(accepted), '/s', 'durable before the 202', 'accepted', 'accent'),
    tile('Delivered', rate(delivered), '/s', 'over all subscribers', 'delivered', 'ok'),
    tile('Pending', count(pending), '', 'accepted and not done', 'pending', 'amber'),
    tile('Given up', rate(dead_lettered + dropped), '/s', given ? `${count(dead_letters)} dead-lettered, ${count(dropped_all)} dropped` : 'none since the start', 'dead_lettered', 'bad'));
}

const key = (kind, namespace, name) => `${kind}/${namespace}/${name}`;

/** Objects as nodes and what leads from one to another as edges. */
function build(model) {
  const nodes = new Map(), edges = [];
  const add = (id, column, node) => {
    if (!nodes.has(id)) nodes.set(id, { id, column, ...node });
    return nodes.get(id);
  };
  const ofObject = (object, kind, plural, group) => ({ object, kind, namespace: object.metadata.namespace, name: object.metadata.name, ready: condition(object)?.status, href: `#/objects/${group}/${plural}/${object.metadata.namespace}/${object.metadata.name}` });
  for (const one of model.brokers) {
    const { namespace, name } = one.metadata;
    add(key('Broker', namespace, name), 1, { ...ofObject(one, 'Broker', 'brokers', 'eventing.knative.dev/v1'), stream: `/brokers/${namespace}/${name}` });
  }
  for (const one of model.channels) {
    const { namespace, name } = one.metadata;
    const plural = one.kind === 'Channel' ? 'channels' : 'inmemorychannels';
    add(key('Channel', namespace, name), 1, { ...ofObject(one, one.kind, plural, 'messaging.knative.dev/v1'), stream: `/channels/${namespace}/${name}` });
  }
  for (const one of model.triggers) subscription(one, 'Trigger', one.spec.broker);
  for (const one of model.subscriptions) subscription(one, 'Subscription', one.spec.channel?.name);
  for (const one of model.sources) {
    const { namespace, name } = one.metadata;
    const id = `${one.kind}/${namespace}/${name}`;
    add(id, 0, { object: one, kind: one.kind, namespace, name, ready: condition(one)?.status, href: `#/objects/${one.id}/${namespace}/${name}` });
    const to = target(one.spec?.sink, namespace, 3);
    if (to) edges.push({ from: id, to, kind: 'event' });
  }
  return { nodes, edges };

  function subscription(one, kind, from) {
    const { namespace, name } = one.metadata;
    const group = kind === 'Trigger' ? ['triggers', 'eventing.knative.dev/v1'] : ['subscriptions', 'messaging.knative.dev/v1'];
    const id = key(kind, namespace, name);
    const label = `${kind.toLowerCase()}/${namespace}/${name}`;
    const parent = key(kind === 'Trigger' ? 'Broker' : 'Channel', namespace, from);
    if (!nodes.has(parent)) add(parent, 1, { kind: kind === 'Trigger' ? 'Broker' : 'Channel', namespace, name: from, missing: true });
    add(id, 2, { ...ofObject(one, kind, ...group), figures: label, filter: filterText(one.spec) });
    edges.push({ from: parent, to: id, kind: 'event', rate: () => now.subscribers.get(label)?.rates.offered });
    const to = target(one.spec.subscriber, namespace, 3);
    if (to) edges.push({ from: id, to, kind: 'event', rate: () => now.subscribers.get(label)?.rates.delivered, retries: () => now.subscribers.get(label)?.rates.retries });
    const replies = kind === 'Trigger' ? parent : target(one.spec.reply, namespace, 3);
    if (to && replies && !nodes.get(parent)?.missing) edges.push({ from: to, to: replies, kind: 'reply', of: id });
    const delivery = one.spec.delivery?.deadLetterSink ?? nodes.get(parent)?.object?.spec.delivery?.deadLetterSink;
    const dead = target(delivery, namespace, 3, 'dead');
    if (dead) edges.push({ from: id, to: dead, kind: 'dead', rate: () => now.subscribers.get(label)?.rates.dead_lettered, total: () => now.subscribers.get(label)?.dead_lettered });
  }

  /** The node that a reference or a URL leads to. */
  function target(destination, namespace, column, role = '') {
    if (!destination) return null;
    const { ref, uri } = destination;
    if (!ref) {
      if (!uri) return null;
      add(`url:${role}:${uri}`, column, { kind: 'URL', name: uri.replace(/^https?:\/\//, ''), namespace: '', uri, role });
      return `url:${role}:${uri}`;
    }
    const where = ref.namespace ?? namespace;
    const stream = { Broker: 'Broker', Channel: 'Channel', InMemoryChannel: 'Channel' }[ref.kind];
    const id = stream ? key(stream, where, ref.name) : `${ref.kind}:${role}:${where}/${ref.name}`;
    const group = ref.apiVersion ?? '';
    const kinds = { Service: 'services' };
    const href = kinds[ref.kind] && group.includes('/') ? `#/objects/${group}/${kinds[ref.kind]}/${where}/${ref.name}` : null;
    const service = ref.kind === 'Service' && group.startsWith('serving.') ? `${where}/${ref.name}` : null;
    add(id, stream ? 1 : column, { kind: ref.kind, namespace: where, name: ref.name, href, service, role: stream ? '' : role });
    return id;
  }
}

function filterText(spec) {
  if (spec.filters?.length) {
    const [first] = spec.filters;
    const [dialect] = Object.keys(first);
    const value = first[dialect];
    const text = typeof value === 'string' ? value : Object.entries(value ?? {}).map(([name, one]) => `${name} ${typeof one === 'string' ? one : '…'}`).join(', ');
    return `${dialect} ${text}${spec.filters.length > 1 ? ` and ${spec.filters.length - 1} more` : ''}`;
  }
  const attributes = Object.entries(spec.filter?.attributes ?? {});
  return attributes.map(([name, value]) => (name === 'type' ? value : `${name}=${value}`)).join(', ');
}

/** Columns from left to right; in a column nodes are near those that lead to them. */
function layout({ nodes, edges }, context) {
  const near = new Map([...nodes.keys()].map(id => [id, []]));
  for (const { from, to, kind } of edges) if (kind !== 'reply') { near.get(from).push(to); near.get(to).push(from); }
  const shown = new Set();
  for (const node of nodes.values()) {
    if (context.matches(node.kind, node.namespace, node.name, node.filter ?? '')) {
      shown.add(node.id);
      if (context.state.filter) near.get(node.id).forEach(id => shown.add(id));
    }
  }
  const used = COLUMNS.map((_, nth) => nth).filter(nth => [...nodes.values()].some(one => one.column === nth && shown.has(one.id)));
  const place = new Map();
  let omitted = 0, height = 0;
  const columns = used.map(nth => [...nodes.values()].filter(one => one.column === nth && shown.has(one.id)));
  columns.forEach((column, nth) => {
    const weight = one => {
      if (one.role === 'dead') return 1e6;
      const known = near.get(one.id).filter(id => place.has(id) && place.get(id).nth < nth).map(id => place.get(id).row);
      return known.length ? known.reduce((all, row) => all + row, 0) / known.length : column.indexOf(one) * 1e-3;
    };
    const sorted = column.map(one => [weight(one), `${one.namespace}/${one.name}`, one]).sort((a, b) => a[0] - b[0] || (a[1] < b[1] ? -1 : 1));
    omitted += Math.max(0, sorted.length - COLUMN_MAX);
    sorted.slice(0, COLUMN_MAX).forEach(([, , one], row) => place.set(one.id, { nth, row }));
    height = Math.max(height, Math.min(COLUMN_MAX, sorted.length));
  });
  return { place, used, omitted, height, columns };
}

function drawing({ nodes, edges }, { place, used, omitted, height, columns }, selected, select) {
  const pitch = NODE.height + NODE.gap;
  const gap = used.length > 1 ? Math.max(70, (1000 - used.length * NODE.width) / (used.length - 1)) : 0;
  const width = used.length * NODE.width + (used.length - 1) * gap + 2 * MARGIN;
  const bottom = 34 + Math.max(height, 2) * pitch;
  const at = id => {
    const spot = place.get(id);
    if (!spot) return null;
    const rows = Math.min(COLUMN_MAX, columns[spot.nth].length);
    return { x: MARGIN + spot.nth * (NODE.width + gap), y: 34 + (Math.max(height, 2) * pitch - rows * pitch) / 2 + spot.row * pitch };
  };
  const linked = new Set(selected ? [selected] : []);
  for (const { from, to, of } of edges) if (selected && [from, to, of].includes(selected)) { linked.add(from); linked.add(to); if (of) linked.add(of); }
  const few = edges.filter(one => one.kind === 'reply').length <= 8;
  const lanes = [];
  const lane = one => {
    const way = `${one.from} ${one.to}`;
    if (!lanes.includes(way)) lanes.push(way);
    return lanes.indexOf(way);
  };
  const isFirst = (one, nth, all) => one.kind !== 'reply' || all.findIndex(other => other.kind === 'reply' && other.from === one.from && other.to === one.to) === nth;
  const wanted = edges.filter(one => place.has(one.from) && place.has(one.to) && (one.kind !== 'reply' || few || linked.has(one.of))).filter(isFirst);
  const drawn = wanted.map(one => edge(one, at, linked, one.kind === 'reply' ? { y: bottom + 4 + lane(one) * 9, nth: lane(one) } : null));
  const full = bottom + 14 + lanes.length * 9;
  return [
    s('svg', { viewBox: `0 0 ${width} ${full}`, width: '100%', style: { 'max-width': `${Math.round(width * 1.25)}px`, 'min-width': `${Math.min(width, 900)}px` }, role: 'group', 'aria-label': 'Graph of events; a node opens its figures' },
      used.map((nth, column) => s('text', { class: 'column-title', x: MARGIN + column * (NODE.width + gap), y: 14 }, COLUMNS[nth])),
      s('g', null, drawn),
      s('g', null, [...nodes.values()].filter(one => place.has(one.id)).map(one => box(one, at(one.id), selected, linked, select)))),
    h('p', { class: 'legend' }, h('span', { class: 'key' }, 'event'), h('span', { class: 'key key-reply' }, 'reply'), h('span', { class: 'key key-dead' }, 'dead letter'), omitted > 0 && h('span', { class: 'quiet' }, `${count(omitted)} further nodes are not drawn; search for them`)),
  ];
}

function edge(one, at, linked, back) {
  const from = at(one.from), to = at(one.to);
  const value = one.rate?.() ?? 0;
  const start = { x: from.x + NODE.width, y: from.y + NODE.height / 2 }, end = { x: to.x, y: to.y + NODE.height / 2 };
  let path;
  if (one.kind === 'reply') {
    // Below everything, back to the left.
    const right = start.x + 10 + (back.nth % 3) * 5, left = end.x - 10 - (back.nth % 3) * 5;
    path = `M${start.x},${start.y + 10}H${right - 6}q6,0 6,6V${back.y - 6}q0,6 -6,6H${left + 6}q-6,0 -6,-6V${end.y + 16}q0,-6 6,-6H${end.x - 1}`;
  } else if (one.kind === 'dead') {
    start.y += 12;
    const bend = Math.max(40, (end.x - start.x) / 2.2);
    path = `M${start.x},${start.y}C${start.x + bend},${start.y + 10} ${end.x - bend},${end.y} ${end.x},${end.y}`;
  } else {
    const bend = Math.max(36, Math.abs(end.x - start.x) / 2);
    path = `M${start.x},${start.y}C${start.x + bend},${start.y} ${end.x - bend},${end.y} ${end.x},${end.y}`;
  }
  const width = 1.4 + Math.min(5, Math.log10(1 + value) * 1.8);
  const isDim = linked.size > 0 && !(linked.has(one.from) && linked.has(one.to));
  const retries = one.retries?.() ?? 0;
  const label = value > 0 ? `${rate(value)}/s` : one.kind === 'dead' && one.total?.() ? count(one.total()) : '';
  // Where several edges leave a node, at their ends; otherwise at the beginning.
  const middle = one.of || !one.retries && one.kind === 'event' ? { x: end.x - 26, y: end.y - 6 } : { x: start.x + 30, y: start.y + (one.kind === 'dead' ? 15 : -6) };
  return s('g', { class: ['edge', one.kind, isDim && 'dim'] },
    s('path', { class: 'bed', d: path, 'stroke-width': width }),
    value > 0 && s('path', { class: 'flow', d: path, 'stroke-width': 2.6 }),
    label && s('text', { x: middle.x, y: middle.y, 'text-anchor': 'middle' }, label),
    retries > 0 && s('text', { class: 'retry', x: start.x + 46, y: middle.y - (label ? 13 : 0), 'text-anchor': 'middle' }, `${rate(retries)} retries/s`));
}

const clip = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

/** Ready instances of a Service, and requests to it. */
function serviceText(service) {
  const [namespace] = service.split('/');
  const all = [...now.backends.values()].filter(one => one.service && `${one.key.split('/')[0]}/${one.service}` === service);
  if (!all.length) return { tone: 'idle', text: `Service in ${namespace}` };
  const ready = all.reduce((sum, one) => sum + (one.ready ?? one.endpoints), 0);
  return ready ? { tone: 'ok', text: `Service · ${count(ready)} ready` } : { tone: 'idle', text: 'Service · scaled to zero' };
}

function box(node, { x, y }, selected, linked, select) {
  const stream = now.streams.get(node.stream), own = now.subscribers.get(node.figures);
  const running = node.service ? serviceText(node.service) : null;
  const tone = node.missing || node.ready === 'False' ? 'bad' : node.ready === 'Unknown' ? 'warn' : node.ready === 'True' ? 'ok' : running?.tone ?? 'idle';
  const second = running ? running.text : stream ? `${rate(stream.rate)}/s in` : own ? (node.filter || 'all events') : node.kind === 'URL' ? 'URL' : `${node.kind} in ${node.namespace}`;
  const state = node.missing ? 'missing' : node.ready === 'False' ? 'not Ready' : node.ready === 'True' ? 'Ready' : '';
  const said = `${node.kind} ${node.namespace}/${node.name}${state && `, ${state}`}${own ? `, ${count(own.pending)} pending` : ''}`;
  return s('g', { class: ['node', tone, node.role === 'dead' && 'sink', selected === node.id && 'selected', linked.size > 0 && !linked.has(node.id) && 'dim'], 'data-key': node.id, transform: `translate(${x},${y})`, tabindex: 0, role: 'button', 'aria-label': said, 'aria-pressed': String(selected === node.id), 'data-row': '', onclick: () => select(node.id) },
    s('title', null, said),
    s('rect', { class: 'body', width: NODE.width, height: NODE.height, rx: 9 }),
    s('rect', { class: 'edge-mark', width: 4, height: NODE.height - 18, x: 0, y: 9, rx: 2 }),
    s('text', { class: 'title', x: 14, y: 20 }, clip(node.name, own?.pending > 0 ? 17 : 23)),
    s('text', { class: 'second', x: 14, y: 37 }, clip(second, 27)),
    own?.pending > 0 && s('g', { class: 'backlog', transform: `translate(${NODE.width - 10},8)` },
      s('rect', { x: -(count(own.pending).length * 7 + 10), width: count(own.pending).length * 7 + 12, height: 17, rx: 8.5 }),
      s('text', { x: -(count(own.pending).length * 3.5 + 4), y: 12.5, 'text-anchor': 'middle' }, count(own.pending))));
}

function detail(node, graph, close) {
  const stream = now.streams.get(node.stream), own = now.subscribers.get(node.figures);
  const ready = node.object && condition(node.object);
  return h('aside', { class: 'card detail', 'aria-label': `${node.kind} ${node.name}` },
    h('h2', null, h('span', { class: 'name' }, node.name), h('button', { class: 'icon', type: 'button', 'aria-label': 'Close', onclick: close }, '✕')),
    h('p', { class: 'quiet' }, `${node.kind}${node.namespace && ` in ${node.namespace}`}`),
    ready && h('p', null, h('span', { class: ['tag', ready.status === 'True' ? 'ok' : 'bad'] }, ready.status === 'True' ? 'Ready' : ready.reason || 'not Ready'), ready.message && h('span', { class: 'quiet' }, ` ${ready.message}`)),
    stream && streamFigures(stream),
    own && subscriberFigures(own, node),
    node.uri && h('p', { class: 'mono' }, node.uri),
    h('p', { class: 'links' },
      node.href && h('a', { class: 'button', href: node.href }, 'Object'),
      own && h('a', { class: 'button', href: `#/events/dead-letters?subscriber=${encodeURIComponent(own.id)}` }, 'Dead letters')));
}

function streamFigures(stream) {
  return [
    h('p', { class: 'figure' }, rate(stream.rate), h('small', null, '/s accepted')),
    sparkline(history(`stream:${stream.path}`), { width: 300, height: 44, label: 'accepted events' }),
    pairs([['Accepted', count(stream.accepted)], ['Rejected', count(stream.rejected)], ['Over quota', count(stream.over_quota)], ['Not authorized', count(stream.unauthorized)], ['Subscribers', count(stream.subscribers.length + stream.subscribers_omitted)]]),
  ];
}

export const ENDS = [['delivered', 'ok', 'delivered'], ['filtered', 'idle', 'filtered'], ['dead_lettered', 'bad', 'dead-lettered'], ['dropped', 'rose', 'dropped'], ['pending', 'amber', 'pending']];

function subscriberFigures(own) {
  const parts = ENDS.map(([key, tone, name]) => ({ name, tone, value: own[key] }));
  return [
    h('p', { class: 'figure' }, rate(own.rates.delivered), h('small', null, '/s delivered')),
    sparkline(history(`subscriber:${own.id}`), { width: 300, height: 44, label: 'delivered events', tone: 'ok' }),
    own.held && h('p', { class: 'note warn' }, `Held: ${own.held}. An object that it names does not exist.`),
    stack(parts, { label: 'Outcomes of events' }),
    pairs([['Offered', count(own.offered)], ...ENDS.map(([key, , name]) => [name[0].toUpperCase() + name.slice(1), `${count(own[key])} · ${percent(own.offered ? own[key] / own.offered : 0)}`]), ['Retries', `${count(own.retries)} · ${rate(own.rates.retries)}/s`]]),
    Object.entries(own.dropped_by).map(([why, number]) => h('p', { class: 'quiet' }, `${plural(number, 'event')} dropped: ${why.replaceAll('_', ' ')}`)),
    h('p', { class: 'mono quiet target' }, own.target),
  ];
}

const pairs = all => h('dl', { class: 'pairs' }, all.map(([name, value]) => [h('dt', null, name), h('dd', null, value)]));
