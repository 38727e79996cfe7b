// One object: its conditions, YAML, Events, and the logs of its instances.

import { get, lines, list, objectPath, send } from './api.js';
import { h } from './dom.js';
import { clock, since } from './format.js';
import { dot } from './plot.js';
import { yaml } from './yaml.js';

const READ_MS = 3000;
const LOG_LINES_MAX = 2000;
const TABS = ['Status', 'YAML', 'Events', 'Logs'];
/** Labels by which Pods say what they belong to. */
const OWNERS = { Service: 'serving.knative.dev/service', Configuration: 'serving.knative.dev/configuration', Revision: 'serving.knative.dev/revision', Route: 'serving.knative.dev/service' };

export function objectView(context, kind, namespace, name, query) {
  let object = null, problem = '', events = [], pods = [], timer = 0, isClosed = false;
  let tab = TABS.find(one => one.toLowerCase() === query.get('tab')) ?? 'Status';
  let log = { pod: '', lines: [], abort: null, ended: '', isPinned: true };
  const path = objectPath(kind, namespace, name);
  const hasPods = kind.kind === 'Pod' || (kind.group === 'serving.knative.dev' && OWNERS[kind.kind]) || ['apps', 'batch'].includes(kind.group);

  const read = async () => {
    try {
      object = await get(path);
      problem = '';
      if (tab === 'Events' || tab === 'Status') await readEvents();
      if (tab === 'Logs') await readPods();
    } catch (error) {
      problem = error.status === 404 ? `${kind.kind} ${name} does not exist${object ? ' any more' : ''}.` : error.message;
    }
    if (isClosed) return;
    clearTimeout(timer);
    timer = setTimeout(read, READ_MS);
    context.update();
  };
  const readEvents = async () => {
    const selector = `involvedObject.name=${name},involvedObject.kind=${kind.kind}`;
    const where = namespace ? `/api/v1/namespaces/${namespace}/events` : '/api/v1/events';
    events = await list(where, { most: 500, fieldSelector: selector });
    events.sort((a, b) => (lastSeen(a) < lastSeen(b) ? 1 : -1));
  };
  const readPods = async () => {
    if (kind.kind === 'Pod') pods = [object];
    else if (OWNERS[kind.kind] && kind.group === 'serving.knative.dev') pods = await list(`/api/v1/namespaces/${namespace}/pods`, { labelSelector: `${OWNERS[kind.kind]}=${name}`, most: 200 });
    else {
      const all = await list(`/api/v1/namespaces/${namespace}/pods`, { most: 1000 });
      pods = all.filter(one => one.metadata.name.startsWith(`${name}-`));
    }
    if (!log.pod && pods.length) followLog(pods[0].metadata.name);
  };

  /** Follows the output of an instance. */
  const followLog = async pod => {
    if (isClosed) return;
    log.abort?.abort();
    const own = (log = { pod, lines: [], abort: new AbortController(), ended: '', isPinned: true });
    context.update();
    try {
      const answer = await send(`/api/v1/namespaces/${namespace}/pods/${pod}/log?follow=true&timestamps=true&tailLines=500`, { accept: '*/*', signal: own.abort.signal });
      let due = 0;
      for await (const line of lines(answer)) {
        own.lines.push(line);
        if (own.lines.length > LOG_LINES_MAX) own.lines.splice(0, own.lines.length - LOG_LINES_MAX);
        due ||= setTimeout(() => { due = 0; if (log === own) context.update(); }, 150);
      }
      own.ended = 'The output has ended.';
    } catch (error) {
      if (own.abort.signal.aborted) return;
      own.ended = error.message;
    }
    if (!isClosed) context.update();
  };

  const draw = () => h('div', { class: 'object' },
    h('header', null,
      h('p', { class: 'quiet' }, h('a', { href: `#/objects/${kind.id}` }, kind.kind), namespace && ` in ${namespace}`),
      h('h2', null, name, object && readyTag(object)),
      h('div', { class: 'tabs', role: 'tablist' }, TABS.filter(one => one !== 'Logs' || hasPods).map(one =>
        h('button', { type: 'button', role: 'tab', 'aria-selected': String(tab === one), onclick: () => { tab = one; clearTimeout(timer); read(); context.update(); } }, one)))),
    problem && h('p', { class: 'note bad', role: 'alert' }, problem),
    object ? h('div', { class: 'object-body', role: 'tabpanel', 'data-key': tab }, { Status: status, YAML: () => yaml(object), Events: eventList, Logs: logs }[tab]()) : !problem && h('p', { class: 'loading' }, 'Reading …'));

  const status = () => {
    const { metadata, status: now } = object;
    const urls = [now?.url, now?.address?.url].filter(Boolean);
    return [
      h('dl', { class: 'pairs' }, [
        ['Created', `${metadata.creationTimestamp} (${since(metadata.creationTimestamp)} ago)`], ['Generation', metadata.generation && `${metadata.generation}, observed ${now?.observedGeneration ?? '–'}`],
        ['URL', urls.length > 0 && urls.map(url => h('div', null, url))],
        ['Owner', metadata.ownerReferences?.map(one => h('div', null, `${one.kind} ${one.name}`))],
        ['Labels', metadata.labels && Object.entries(metadata.labels).map(([key, value]) => h('div', null, `${key}=${value}`))],
      ].filter(([, value]) => value).map(([key, value]) => [h('dt', null, key), h('dd', { class: 'mono' }, value)])),
      conditions(now?.conditions ?? []),
      now?.traffic && traffic(now.traffic),
      events.length > 0 && h('h3', null, 'Newest Events'), events.length > 0 && eventRows(events.slice(0, 5)),
    ];
  };

  const eventList = () => (events.length ? eventRows(events) : h('p', { class: 'empty' }, 'No Event is recorded of this object.'));

  const logs = () => [
    h('div', { class: 'filters' },
      h('select', { class: 'field', 'aria-label': 'Instance', onchange: event => followLog(event.target.value) }, pods.map(one => h('option', { value: one.metadata.name, selected: one.metadata.name === log.pod }, `${one.metadata.name} (${one.status?.phase ?? ''})`))),
      h('span', { class: 'quiet' }, log.ended || (log.pod ? 'following' : 'No instance runs.'))),
    h('pre', { class: 'log', tabindex: 0, role: 'log', 'aria-label': 'Output', 'data-log': log.pod, onscroll: event => { const { scrollTop, clientHeight, scrollHeight } = event.target; log.isPinned = scrollTop + clientHeight >= scrollHeight - 24; } },
      log.lines.filter(line => context.matches(line)).map(line => { const [at, ...rest] = line.split(' '); return h('div', null, h('span', { class: 'quiet' }, at.slice(11, 23)), ' ', rest.join(' ')); })),
  ];

  read();
  return {
    kind,
    draw: () => {
      const drawn = draw();
      if (tab === 'Logs' && log.isPinned) requestAnimationFrame(() => { const box = document.querySelector('[data-log]'); if (box) box.scrollTop = box.scrollHeight; });
      return drawn;
    },
    close: () => { isClosed = true; clearTimeout(timer); log.abort?.abort(); },
  };
}

function readyTag(object) {
  const conditions = object.status?.conditions ?? [];
  const ready = conditions.find(one => ['Ready', 'Available', 'Established'].includes(one.type));
  if (!ready) return null;
  const tone = ready.status === 'True' ? 'ok' : ready.status === 'False' ? 'bad' : 'warn';
  return h('span', { class: ['tag', tone] }, ready.status === 'True' ? ready.type : ready.reason || `not ${ready.type}`);
}

function conditions(all) {
  if (!all.length) return h('p', { class: 'quiet' }, 'It has no conditions.');
  const rank = { False: 0, Unknown: 1, True: 2 };
  const sorted = [...all].sort((a, b) => rank[a.status] - rank[b.status] || (a.type === 'Ready' ? -1 : b.type === 'Ready' ? 1 : a.type.localeCompare(b.type)));
  return h('table', { class: 'plain' },
    h('thead', null, h('tr', null, ['Condition', 'Status', 'Reason', 'For', 'Message'].map(one => h('th', { scope: 'col' }, one)))),
    h('tbody', null, sorted.map(one => {
      const isGood = one.status === 'True' || one.severity === 'Info';
      const tone = isGood ? 'ok' : one.status === 'False' ? 'bad' : 'warn';
      return h('tr', { 'data-key': one.type }, h('td', null, h('b', null, one.type)), h('td', null, dot(tone, one.status), one.status), h('td', null, one.reason ?? ''), h('td', { class: 'quiet' }, since(one.lastTransitionTime)), h('td', { class: 'wrap' }, one.message ?? ''));
    })));
}

const traffic = all => h('table', { class: 'plain' },
  h('thead', null, h('tr', null, ['Traffic', 'Share', 'Tag', 'URL'].map(one => h('th', { scope: 'col' }, one)))),
  h('tbody', null, all.map(one => h('tr', null, h('td', null, one.revisionName ?? ''), h('td', null, one.percent === undefined ? '' : `${one.percent} %`), h('td', null, one.tag ?? ''), h('td', { class: 'mono' }, one.url ?? '')))));

const lastSeen = event => event.lastTimestamp ?? event.eventTime ?? event.metadata.creationTimestamp;

const eventRows = all => h('table', { class: 'plain' },
  h('thead', null, h('tr', null, ['Last seen', 'Type', 'Reason', 'Count', 'Message'].map(one => h('th', { scope: 'col' }, one)))),
  h('tbody', null, all.map(one => h('tr', { 'data-key': one.metadata.uid }, h('td', { class: 'quiet', title: lastSeen(one) }, `${clock(lastSeen(one))}`), h('td', null, dot(one.type === 'Warning' ? 'warn' : 'ok', one.type), one.type), h('td', null, one.reason ?? ''), h('td', null, one.count ?? one.series?.count ?? 1), h('td', { class: 'wrap' }, one.message ?? one.note ?? '')))));
