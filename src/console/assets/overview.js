// Overview: what flows now, how fast, and what is on the move.

import { list } from './api.js';
import { h, render } from './dom.js';
import { now } from './figures.js';
import { age, bytes, count, duration, percent, plural, rate } from './format.js';
import { axis, domain, dot, percentileBand, phases, stack, tile } from './plot.js';
import { traffic } from './traffic.js';

const ROLLOUT = 'networking.internal.knative.dev/rollout';
const LATENCIES_MAX = 8;
const COLD_STARTS_MAX = 12;

export const overview = { title: 'Overview', search: 'Search hosts and revisions', mount };

function mount(main, context) {
  const table = traffic(context);
  let routes = [];
  let seen = -1;
  let isReading = false;
  const read = async () => {
    if (isReading || !now.line || now.line.table_version === seen) return;
    isReading = true;
    seen = now.line.table_version;
    await table.read(); // what fails here fails at the next version too; the stream says why
    routes = await list('/apis/serving.knative.dev/v1/routes', { most: 1000 }).catch(() => []);
    setTimeout(() => (isReading = false), 1500);
    context.update();
  };
  const update = () => {
    if (!now.line) return render(main, h('p', { class: 'loading' }, now.error || 'Waiting for the first figures …'));
    read();
    render(main,
      h('h1', { class: 'hidden' }, 'Overview'),
      warnings(),
      tiles(),
      h('div', { class: 'columns' },
        h('div', { class: 'column wide' }, rollouts(routes), table.draw(), instances()),
        h('div', { class: 'column' }, latencies(context), coldStarts())));
  };
  return { update };
}

function warnings() {
  const texts = [now.live ? '' : now.error, now.line.not_ready, now.line.warnings].filter(Boolean);
  return texts.map(text => h('p', { class: 'note bad', role: 'alert' }, text.trim()));
}

function tiles() {
  const { total, line } = now;
  const [p50, p50_unit] = split(duration(total.latency?.p50));
  const failed = total.requests > 0 ? total.failed / total.requests : 0;
  const memory = bytes(line.process.memory_bytes);
  const events = total.events;
  return h('div', { class: 'tiles' },
    tile('Requests', rate(total.requests), '/s', total.failed > 0 ? h('span', { class: 'bad' }, `${percent(failed, 1)} fail`) : 'no failures', 'requests', 'accent'),
    tile('Latency', p50, p50_unit, total.latency ? `99 % within ${duration(total.latency.p99)}` : 'no request in 10 s', 'p99', 'violet'),
    tile('Instances', count(total.instances), '', `${plural(line.backends.filter(one => one.endpoints > 0).length, 'revision')} running`, 'instances', 'ok'),
    tile('Events', rate(events.accepted), '/s', events.pending > 0 ? `${count(events.pending)} pending` : 'none pending', 'accepted', 'amber'),
    tile('Connections', count(total.connections_open), '', `${memory} of memory`, 'connections_open', 'blue'));
}

const split = text => (text.includes(' ') ? text.split(' ') : [text, '']);

function rollouts(routes) {
  const moving = routes.flatMap(route => {
    let shares = [];
    try {
      shares = JSON.parse(route.status?.annotations?.[ROLLOUT] ?? '[]');
    } catch {
      // Another control plane's note.
    }
    return shares.map(share => ({ route, share }));
  });
  if (!moving.length) return null;
  return h('section', { class: 'card', 'aria-labelledby': 'rollouts' },
    h('h2', { id: 'rollouts' }, 'Rollouts', h('span', { class: 'tag accent' }, `${moving.length} moving`)),
    moving.map(({ route, share }) => {
      const { namespace, name } = route.metadata;
      const [newest, to] = share.revisions[share.revisions.length - 1];
      const whole = share.revisions.reduce((all, [, part]) => all + part, 0);
      const left = Math.max(0, share.next_step_ms - now.at);
      return h('div', { class: 'rollout', 'data-key': `${namespace}/${name}/${share.target}` },
        h('a', { href: `#/objects/serving.knative.dev/v1/routes/${namespace}/${name}`, 'data-row': '' }, `${namespace}/${name}`),
        stack(share.revisions.map(([revision, part], nth) => ({ name: revision, value: part, tone: nth === share.revisions.length - 1 ? 'accent' : 'idle' })), { label: 'Shares', max: whole }),
        h('span', { class: 'quiet' }, `${newest} has ${to} of ${whole} %, +${share.step_percent} % in ${age(left)}`));
    }));
}

function latencies(context) {
  const busy = [...now.backends.values()].filter(one => one.latency && context.matches(one.key)).sort((a, b) => b.rate - a.rate);
  const past = busy.length ? [] : [...now.backends.values()].filter(one => one.overall && context.matches(one.key));
  const shown = (busy.length ? busy : past.sort((a, b) => b.overall.count - a.overall.count)).slice(0, LATENCIES_MAX);
  const pick = one => (busy.length ? one.latency : one.overall);
  const scale = shown.length ? domain(shown.flatMap(one => [pick(one).p50, pick(one).p99])) : null;
  return h('section', { class: 'card', 'aria-labelledby': 'latencies' },
    h('h2', { id: 'latencies' }, 'Latency by revision', h('span', { class: 'quiet' }, busy.length || !shown.length ? 'the last 10 s' : 'since the start')),
    shown.length ? [
      shown.map(one => h('div', { class: 'latency', 'data-key': one.key, title: one.key },
        h('span', { class: 'name' }, name(one.key)), percentileBand(pick(one), scale, one.key),
        h('span', { class: 'number' }, duration(pick(one).p50)), h('span', { class: 'number quiet' }, duration(pick(one).p99)))),
      h('div', { class: 'latency foot' }, h('span'), axis(scale), h('span', { class: 'number' }, '50 %'), h('span', { class: 'number quiet' }, '99 %')),
    ] : h('p', { class: 'empty' }, 'No request was answered yet.'));
}

const name = key => key.split('/').pop();

const STATES = [['ready', 'ok', 'ready'], ['starting', 'accent', 'starting'], ['not_ready', 'bad', 'not ready'], ['frozen', 'blue', 'frozen'], ['draining', 'amber', 'draining']];
/** Beyond this many instances of a revision a number stands for the rest. */
const SQUARES_MAX = 48;

function instances() {
  const of = (one, key) => (key === 'ready' ? one.ready ?? one.endpoints : one[key]) || 0;
  const shown = [...now.backends.values()].filter(one => STATES.some(([key]) => of(one, key) > 0));
  const asleep = [...now.backends.values()].filter(one => one.desired === 0 && !one.endpoints && !one.starting).length;
  const total = STATES.map(([key, tone, text]) => ({ name: text, tone, value: shown.reduce((all, one) => all + of(one, key), 0) }));
  return h('section', { class: 'card', 'aria-labelledby': 'instances' },
    h('h2', { id: 'instances' }, 'Instances', h('span', { class: 'quiet' }, asleep ? `${plural(asleep, 'revision')} scaled to zero` : '')),
    h('p', { class: 'legend' }, total.map(one => h('span', { class: one.value ? '' : 'quiet' }, dot(one.tone, one.name), `${count(one.value)} ${one.name}`))),
    shown.length ? h('div', { class: 'pair' }, shown.slice(0, 24).map(one => {
      const squares = STATES.flatMap(([key, tone, text]) => Array(Math.min(SQUARES_MAX, of(one, key))).fill([tone, text])).slice(0, SQUARES_MAX);
      return h('div', { class: 'squares', 'data-key': one.key, title: one.key },
        h('span', { class: 'name' }, name(one.key)),
        h('span', { class: 'cells', role: 'img', 'aria-label': STATES.filter(([key]) => of(one, key)).map(([key, , text]) => `${of(one, key)} ${text}`).join(', ') }, squares.map(([tone]) => h('i', { class: ['cell', tone] }))),
        h('span', { class: 'number quiet' }, one.desired === null ? '' : `${count(of(one, 'ready'))} of ${count(one.desired)}`));
    })) : h('p', { class: 'empty' }, 'No instance runs. A request starts one.'));
}

function coldStarts() {
  const shown = now.line.cold_starts.slice(0, COLD_STARTS_MAX);
  const parts = one => {
    const listen = Math.min(one.listen_us, one.queue_us);
    const spawn = Math.min(one.spawn_us, one.queue_us - listen);
    return [
      { name: 'decide and queue', us: one.queue_us - listen - spawn, tone: 'idle' },
      { name: 'spawn', us: spawn, tone: 'blue' },
      { name: 'listen', us: listen, tone: 'violet' },
      { name: 'first byte', us: one.first_byte_us, tone: 'ok' },
    ];
  };
  const whole = one => one.queue_us + one.first_byte_us;
  const max = Math.max(1, ...shown.map(whole));
  return h('section', { class: 'card', 'aria-labelledby': 'cold-starts' },
    h('h2', { id: 'cold-starts' }, 'Cold starts', h('span', { class: 'quiet' }, 'from the request to its first byte')),
    shown.length ? [
      h('p', { class: 'legend' }, parts(shown[0]).map(one => h('span', null, dot(one.tone, one.name), one.name))),
      shown.map(one => h('div', { class: 'cold', 'data-key': `${one.backend}@${one.answered_ms}`, title: one.backend },
        h('span', { class: 'name' }, name(one.backend)), phases(parts(one), max, one.backend),
        h('span', { class: 'number' }, duration(whole(one))), h('span', { class: 'number quiet' }, `${age(now.at - one.answered_ms)} ago`))),
    ] : h('p', { class: 'empty' }, 'No request waited for an instance yet.'));
}

