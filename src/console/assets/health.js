// Health: cores and their logs, limits that are near, and whether every event is accounted for.

import { h, render } from './dom.js';
import { history, now } from './figures.js';
import { bytes, count, duration, percent, plural, rate } from './format.js';
import { dot, meter, sparkline, stack } from './plot.js';
import { ENDS } from './topology.js';

export const health = { title: 'Health', search: 'Search streams and limits', mount };

const SUBSCRIBERS_SHOWN = 60;

function mount(main, context) {
  const update = () => {
    if (!now.line) return render(main, h('p', { class: 'loading' }, now.error || 'Waiting for the first figures …'));
    return render(main,
      h('h1', { class: 'hidden' }, 'Health'),
      verdict(),
      h('div', { class: 'columns even' },
        h('div', { class: 'column' }, cores(), logs()),
        h('div', { class: 'column' }, limits(context), replies(), threads())),
      conservation(context));
  };
  return { update };
}

function verdict() {
  const { not_ready, warnings, process, version, table_version } = now.line;
  const texts = [now.live ? '' : now.error, not_ready, warnings].filter(Boolean).join('\n').trim();
  return [
    texts && h('p', { class: ['note', not_ready || !now.live ? 'bad' : 'warn'], role: 'alert' }, texts),
    h('p', { class: 'verdict' }, dot(texts ? (not_ready ? 'bad' : 'warn') : 'ok', texts ? 'see above' : 'ready'), h('b', null, not_ready ? 'Not ready' : 'Ready'),
      h('span', { class: 'quiet' }, `version ${version} · process ${process.pid} · table ${table_version} · ${bytes(process.memory_bytes)} of memory`)),
  ];
}

const cell = (name, value, tone) => h('div', { class: 'fact' }, h('dt', null, name), h('dd', { class: tone }, value));

function cores() {
  return h('section', { class: 'card', 'aria-labelledby': 'cores' },
    h('h2', { id: 'cores' }, 'Cores', h('span', { class: 'quiet' }, 'one event loop each')),
    now.cores.map((core, nth) => {
      const cpu = now.threads.get(`core-${nth}`)?.share;
      return h('div', { class: 'core', 'data-key': `core-${nth}` },
        h('b', null, `core ${nth}`),
        h('div', { class: 'core-load' }, h('span', { class: 'quiet' }, `${percent(cpu ?? NaN)} of a processor · ${rate(core.rates.turns)} turns a second`), meter(cpu ?? 0, 1, { label: `Processor time of core ${nth}`, text: percent(cpu ?? 0) })),
        sparkline(history(`thread:core-${nth}`), { width: 110, height: 34, label: `processor time of core ${nth}`, max: 0.05 }),
        h('dl', { class: 'facts' },
          cell('requests', `${rate(core.rates.requests)}/s`), cell('connections', count(core.connections_open)), cell('new', `${rate(core.rates.connections)}/s`),
          cell('in', `${bytes(core.rates.received)}/s`), cell('out', `${bytes(core.rates.sent)}/s`),
          cell('reused', percent(core.upstream_reused / Math.max(1, core.upstream_reused + core.upstream_connections))),
          cell('stalls', count(core.stalls), core.stalls ? 'bad' : ''), cell('panics', count(core.tasks_panicked), core.tasks_panicked ? 'bad' : '')));
    }));
}

function logs() {
  return h('section', { class: 'card', 'aria-labelledby': 'logs' },
    h('h2', { id: 'logs' }, 'Event logs', h('span', { class: 'quiet' }, 'one for each core')),
    now.cores.map(({ log, rates }, nth) => {
      const broken = log.failed || log.corrupt_segments || log.corrupt_records || log.gaps;
      return h('div', { class: 'core log-core', 'data-key': `log-${nth}` },
        h('b', null, dot(log.failed ? 'bad' : broken ? 'warn' : 'ok', log.failed ? 'failed' : broken ? 'damaged' : 'accepts events'), `log ${nth}`),
        h('div', { class: 'core-load' }, h('span', { class: 'quiet' }, `${bytes(log.live_bytes)} live of ${bytes(log.bytes)} on disk`), meter(log.live_bytes, Math.max(log.bytes, 1), { label: 'Live bytes', text: bytes(log.live_bytes) })),
        sparkline(history(`core:${nth}:flushes`), { width: 110, height: 34, label: 'flushes', tone: 'violet' }),
        h('dl', { class: 'facts' },
          cell('flushes', `${rate(rates.flushes)}/s`), cell('a flush', duration(rates.flush_us ?? (log.flushes ? log.flush_us / log.flushes : null))), cell('flushed', `${bytes(rates.flushed_bytes)}/s`),
          cell('not durable', bytes(log.unflushed_bytes)), cell('compacted', bytes(log.compacted_bytes)),
          cell('corrupt', count(log.corrupt_records + log.corrupt_segments), log.corrupt_records + log.corrupt_segments ? 'bad' : ''), cell('gaps', count(log.gaps), log.gaps ? 'bad' : ''), cell('failed', log.failed ? 'yes' : 'no', log.failed ? 'bad' : '')));
    }));
}

function limits(context) {
  const { line } = now;
  const all = [
    ...now.cores.map((core, nth) => ({ name: `connections of core ${nth}`, used: core.connections_open, max: line.connections_max, show: count })),
    ...now.cores.map((core, nth) => ({ name: `size of log ${nth}`, used: core.log.bytes, max: core.log.bytes_max, show: bytes })),
    { name: 'open files', used: line.process.open_files, max: line.process.open_files_max, show: count },
    ...line.quotas.map(one => ({ name: `events of ${one.name || 'all namespaces'}`, used: one.used, max: one.bytes_max, show: bytes })),
    ...[...now.backends.values()].filter(one => one.concurrency_max > 0 && one.endpoints > 0).map(one => ({ name: `requests of ${one.key}`, used: one.active, max: one.concurrency_max * one.endpoints, show: count })),
  ].filter(one => one.max > 0 && context.matches(one.name)).sort((a, b) => b.used / b.max - a.used / a.max);
  const refused = now.cores.reduce((sum, core) => sum + core.connections_refused, 0);
  return h('section', { class: 'card', 'aria-labelledby': 'limits' },
    h('h2', { id: 'limits' }, 'Limits', h('span', { class: 'quiet' }, 'the nearest first')),
    all.slice(0, 8).map(one => h('div', { class: 'limit', 'data-key': one.name },
      h('span', { class: 'name' }, one.name), meter(one.used, one.max, { label: one.name, text: `${one.show(one.used)} of ${one.show(one.max)}` }),
      h('span', { class: 'number' }, percent(one.used / one.max, one.used / one.max < 0.01 ? 2 : 0)), h('span', { class: 'number quiet' }, `${one.show(one.used)} of ${one.show(one.max)}`))),
    refused > 0 && h('p', { class: 'bad' }, `${plural(refused, 'connection')} refused because a core was full`));
}

function replies() {
  const all = Object.entries(now.line.local_replies).sort((a, b) => b[1] - a[1]);
  return h('section', { class: 'card', 'aria-labelledby': 'replies' },
    h('h2', { id: 'replies' }, 'Local replies', h('span', { class: 'quiet' }, 'responses that the gateway made itself')),
    all.length ? h('p', { class: 'chips' }, all.map(([reason, number]) => h('span', { class: 'tag amber' }, `${reason.replaceAll('_', ' ')} ${count(number)}`))) : h('p', { class: 'quiet' }, 'None: every response came from an instance.'));
}

function threads() {
  const all = [...now.threads].sort((a, b) => b[1].share - a[1].share || b[1].cpu_ms - a[1].cpu_ms).slice(0, 8);
  return h('section', { class: 'card', 'aria-labelledby': 'threads' },
    h('h2', { id: 'threads' }, 'Threads', h('span', { class: 'quiet' }, 'processor time now')),
    all.map(([name, { share, cpu_ms }]) => h('div', { class: 'limit', 'data-key': name },
      h('span', { class: 'name mono' }, name), meter(share, 1, { label: name, text: percent(share) }), h('span', { class: 'number' }, percent(share)), h('span', { class: 'number quiet' }, `${duration(cpu_ms * 1000)} in all`))));
}

function conservation(context) {
  const all = [...now.subscribers.values()].filter(one => context.matches(one.id, one.stream));
  const trouble = one => one.dropped + one.dead_lettered + one.pending;
  all.sort((a, b) => trouble(b) - trouble(a) || b.offered - a.offered);
  const holds = one => one.offered === ENDS.reduce((sum, [key]) => sum + one[key], 0);
  const streams = [...now.streams.values()].filter(one => context.matches(one.path));
  return h('section', { class: 'card law', 'aria-labelledby': 'law' },
    h('h2', { id: 'law' }, 'Every event is accounted for', h('span', { class: 'quiet' }, 'offered = delivered + filtered + dead-lettered + dropped + pending')),
    h('p', { class: 'legend' }, ENDS.map(([, tone, name]) => h('span', null, dot(tone, name), name)), h('span', { class: 'quiet' }, `${plural(streams.length, 'stream')}, ${count(streams.reduce((sum, one) => sum + one.accepted, 0))} events accepted, ${count(streams.reduce((sum, one) => sum + one.rejected, 0))} rejected, ${count(now.line.abandoned)} abandoned`)),
    all.length ? all.slice(0, SUBSCRIBERS_SHOWN).map(one => h('div', { class: 'balance', 'data-key': one.id },
      h('a', { class: 'name', href: `#/events/dead-letters?subscriber=${encodeURIComponent(one.id)}`, 'data-row': '', title: one.stream }, one.id),
      stack(ENDS.map(([key, tone, name]) => ({ name, tone, value: one[key] })), { label: one.id }),
      h('span', { class: 'number' }, count(one.offered)),
      h('span', { class: 'number quiet sum' }, ENDS.filter(([key]) => one[key]).map(([key, , name]) => `${count(one[key])} ${name}`).join(' + ') || 'no event yet'),
      h('span', { class: 'number' }, holds(one) ? dot('ok', 'the counts add up') : dot('bad', 'the counts do not add up')))) : h('p', { class: 'empty' }, 'No Trigger and no Subscription has a stream yet.'),
    all.length > SUBSCRIBERS_SHOWN && h('p', { class: 'quiet' }, `${count(all.length - SUBSCRIBERS_SHOWN)} more: search for them.`));
}
