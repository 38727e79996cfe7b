// Hosts → routes → revisions, with the share and the rate that each has now.

import { get } from './api.js';
import { h, s } from './dom.js';
import { history, now } from './figures.js';
import { count, duration, percent, rate } from './format.js';
import { dot, sparkline } from './plot.js';

/** Hosts that are read, by their names. */
const HOSTS_MAX = 1000;
const SHOWN_AT_FIRST = 12;
const SHOWN_MORE = 40;
/** Height of a revision's row, as in the style sheet. */
const ROW = 46;

export function traffic(context) {
  let groups = [];
  let omitted = 0;
  let shown = SHOWN_AT_FIRST;
  let problem = '';
  const read = async () => {
    try {
      const answer = await get(`/debug/routes?limit=${HOSTS_MAX}`);
      groups = grouped(answer);
      omitted = answer.hosts - answer.returned;
      problem = '';
    } catch (error) {
      problem = error.message;
    }
  };
  const draw = () => {
    const wanted = groups.filter(one => context.matches(one.name, one.host, ...one.parts.map(part => part.backend)));
    // By the last minute, so that rows do not change places each second.
    wanted.sort((a, b) => Math.round(past(b)) - Math.round(past(a)) || a.name.localeCompare(b.name));
    return h('section', { class: 'card traffic', 'aria-labelledby': 'traffic' },
      h('h2', { id: 'traffic' }, 'Traffic', h('span', { class: 'quiet' }, `${count(now.line.hosts)} hosts`)),
      problem && h('p', { class: 'note bad' }, problem),
      !groups.length && !problem && h('p', { class: 'empty' }, 'No host is served yet. Create a Service, or give --route.'),
      groups.length > 0 && !wanted.length && h('p', { class: 'empty' }, 'No route matches the search.'),
      wanted.slice(0, shown).map(group),
      wanted.length > shown && h('button', { type: 'button', class: 'more-button', onclick: () => { shown += SHOWN_MORE; context.update(); } }, `Show ${Math.min(SHOWN_MORE, wanted.length - shown)} of ${wanted.length - shown} more`),
      omitted > 0 && h('p', { class: 'note' }, `${count(omitted)} further hosts are not listed here.`));
  };
  return { read, draw };
}

/** Hosts that lead to the same Service are one route; hosts with another split are its tags. */
function grouped({ routes }) {
  const services = new Map([...now.backends.values()].filter(one => one.service).map(one => [one.key, `${one.key.split('/')[0]}/${one.service}`]));
  const groups = new Map();
  for (const { host, cluster_local, rules } of routes) {
    // A split without a backend has a reply, such as a redirect.
    const splits = (rules[rules.length - 1]?.splits ?? []).filter(split => split.backend);
    const backends = [...new Set(rules.flatMap(rule => rule.splits.map(split => split.backend)))].filter(Boolean);
    if (!backends.length) continue;
    const owners = new Set(backends.map(key => services.get(key)));
    const owner = owners.size === 1 ? [...owners][0] : undefined;
    const key = owner ?? JSON.stringify(rules.map(rule => [rule.path, rule.splits]));
    let known = groups.get(key);
    if (!known) groups.set(key, (known = { key, owner, hosts: [] }));
    known.hosts.push({ host, cluster_local, splits, backends, rules: rules.length });
  }
  return [...groups.values()].map(one => summary(one));
}

const text = splits => JSON.stringify(splits.map(({ weight, backend }) => [backend, weight]).sort());

function summary({ key, owner, hosts }) {
  const inside = one => one.cluster_local || /\.svc(\.|$)/.test(one.host) || !one.host.includes('.') || one.host.split('.').length < 3;
  const order = (a, b) => b.backends.length - a.backends.length || inside(a) - inside(b) || a.host.length - b.host.length;
  const [first] = [...hosts].sort(order);
  const name = owner ?? first.host;
  const short = name.split('/').pop();
  const main = hosts.find(one => !inside(one) && one.host.startsWith(`${short}.`)) ?? first;
  const tags = hosts.filter(one => !inside(one) && one !== main && text(one.splits) !== text(main.splits));
  const weights = new Map();
  for (const { weight, backend } of main.splits) weights.set(backend, (weights.get(backend) ?? 0) + weight);
  const all = [...weights.values()].reduce((sum, weight) => sum + weight, 0);
  for (const backend of new Set(hosts.flatMap(one => one.backends))) if (!weights.has(backend)) weights.set(backend, 0);
  const parts = [...weights].map(([backend, weight]) => ({ backend, weight: all ? weight / all : 0 }));
  parts.sort((a, b) => b.weight - a.weight || a.backend.localeCompare(b.backend));
  return { key, owner, name, host: main.host, inside: inside(main), others: hosts.length - 1 - tags.length, rules: main.rules, parts,
    tags: tags.map(one => ({ host: one.host, tag: one.host.slice(0, Math.max(0, one.host.indexOf(`-${short}.`))) || one.host, to: one.splits.map(split => split.backend.split('/').pop()) })) };
}

const groupRate = one => one.parts.reduce((sum, part) => sum + (now.backends.get(part.backend)?.rate ?? 0), 0);

const past = one => one.parts.reduce((sum, part) => {
  const rates = history(`backend:${part.backend}`);
  return sum + rates.reduce((all, value) => all + value, 0) / Math.max(1, rates.length);
}, 0);

function group(one) {
  const total = groupRate(one);
  const height = one.parts.length * ROW;
  const [namespace, name] = one.owner ? one.owner.split('/') : ['', one.name];
  const href = one.owner ? `#/objects/serving.knative.dev/v1/services/${namespace}/${name}` : null;
  return h('div', { class: 'route', 'data-key': one.key },
    h('div', { class: 'route-host' },
      h(href ? 'a' : 'span', { class: 'route-name', href, 'data-row': href ? '' : null }, name),
      h('span', { class: 'host', title: one.host }, one.host),
      h('span', { class: 'quiet' }, h('b', null, rate(total)), ' /s', one.rules > 1 && ` · ${one.rules} rules`, one.others > 0 && ` · +${one.others} names`),
      one.tags.slice(0, 3).map(tag => h('span', { class: 'tag', title: tag.host }, `${tag.tag} → ${tag.to.join(', ')}`))),
    s('svg', { class: 'ribbons', viewBox: `0 0 60 ${height}`, preserveAspectRatio: 'none', 'aria-hidden': 'true', style: { height: `${height}px` } },
      one.parts.map((part, nth) => ribbon(part, nth, one, total, height))),
    h('div', { class: 'route-parts' }, one.parts.map((part, nth) => revision(part, nth, total))));
}

const TONES = ['accent', 'violet', 'amber', 'ok', 'blue', 'rose'];

function ribbon(part, nth, one, total, height) {
  const live = now.backends.get(part.backend)?.rate ?? 0;
  const share = total > 0 ? live / total : part.weight;
  const width = 1.5 + share * 13;
  const from = height / 2 + (nth - (one.parts.length - 1) / 2) * Math.min(9, 30 / one.parts.length);
  const to = nth * ROW + ROW / 2;
  const path = `M0,${from}C32,${from} 26,${to} 60,${to}`;
  const tone = TONES[nth % TONES.length];
  return s('g', { class: ['ribbon', tone, live > 0 ? 'flows' : ''] },
    s('path', { class: 'bed', d: path, 'stroke-width': width }),
    live > 0 && s('path', { class: 'flow', d: path, 'stroke-width': 2.2 }));
}

function revision(part, nth, total) {
  const one = now.backends.get(part.backend);
  const [namespace, name] = part.backend.split('/');
  const live = total > 0 && one ? one.rate / total : null;
  const latency = one?.latency;
  const running = one ? (one.ready ?? one.endpoints) : 0;
  const stateText = !one ? 'not among the busiest' : one.starting ? `${running} ready, ${one.starting} starting` : running ? `${running} ready` : one.frozen ? `${one.frozen} frozen` : one.desired === null ? 'no instance' : 'scaled to zero';
  const tone = !one ? 'idle' : one.not_ready ? 'bad' : one.starting ? 'accent' : running ? 'ok' : one.frozen ? 'blue' : 'idle';
  const isStatic = namespace === 'static';
  return h('div', { class: ['revision', TONES[nth % TONES.length]], 'data-key': part.backend },
    h('div', { class: 'revision-name' }, h(isStatic ? 'span' : 'a', { href: isStatic ? null : `#/objects/serving.knative.dev/v1/revisions/${namespace}/${name}`, title: part.backend }, name),
      h('span', { class: 'quiet' }, dot(tone, stateText), stateText, one?.queued > 0 && h('b', { class: 'warn' }, ` ${count(one.queued)} queued`))),
    h('div', { class: 'share', title: `configured: ${percent(part.weight)}` },
      h('div', { class: 'share-bar' }, h('span', { class: 'share-live', style: { width: `${100 * (live ?? 0)}%` } }), h('i', { class: 'share-weight', style: { left: `${100 * part.weight}%` } })),
      h('span', { class: 'share-text' }, h('b', null, live === null ? '–' : percent(live)), h('span', { class: 'quiet' }, ` of ${percent(part.weight)}`))),
    h('div', { class: 'revision-rate' }, h('span', null, h('b', null, rate(one?.rate ?? 0)), h('span', { class: 'quiet' }, ' /s')), one?.failed > 0 && h('span', { class: 'bad' }, `${rate(one.failed)} fail`)),
    sparkline(history(`backend:${part.backend}`), { width: 90, height: 26, label: `rate of ${name}`, tone: TONES[nth % TONES.length] }),
    h('div', { class: 'revision-latency' }, latency ? [h('span', null, duration(latency.p50)), h('span', { class: 'quiet' }, duration(latency.p99))] : h('span', { class: 'quiet' }, '–')));
}
