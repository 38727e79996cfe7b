// The stream of figures: totals become rates, percentiles and short histories.

import { lines, send } from './api.js';

const HISTORY_MAX = 90;
const WINDOW = 10; // seconds of percentiles
const RETRY_MS = [500, 1000, 2000, 5000];

export const changes = new EventTarget();

/** What is known now; `at` is 0 before the first line. */
export const now = {
  at: 0, live: false, error: '', line: null, interval: 0,
  backends: new Map(), streams: new Map(), subscribers: new Map(), cores: [], threads: new Map(), total: {},
};

const histories = new Map();
let before = null;

/** The last values of a figure, the newest last. */
export const history = key => histories.get(key)?.values ?? [];

function note(key, value, at) {
  let known = histories.get(key);
  if (!known) histories.set(key, (known = { values: [], at }));
  known.values.push(value);
  known.at = at;
  if (known.values.length > HISTORY_MAX) known.values.shift();
}

/** Follows the stream, and again whenever it ends. */
export async function follow() {
  for (let failures = 0; ; ) {
    try {
      const response = await send('/console/stream');
      for await (const line of lines(response)) {
        if (!line) continue;
        take(JSON.parse(line));
        failures = 0;
      }
      fail('the stream of figures ended');
    } catch (error) {
      fail(error.status ? error.message : 'the appliance does not answer');
    }
    before = null;
    await new Promise(resolve => setTimeout(resolve, RETRY_MS[Math.min(failures++, RETRY_MS.length - 1)]));
  }
}

function fail(why) {
  Object.assign(now, { live: false, error: why });
  changes.dispatchEvent(new Event('change'));
}

function take(line) {
  const seconds = before ? (line.time_ms - before.time_ms) / 1000 : 0;
  Object.assign(now, { at: line.time_ms, live: true, error: '', line, interval: seconds });
  const per = (value, last) => (seconds > 0 && last !== undefined ? Math.max(0, value - last) / seconds : 0);
  takeCores(line, per);
  takeBackends(line, per);
  takeStreams(line, per);
  const stale = line.time_ms - 5 * 60_000;
  for (const [key, known] of histories) if (known.at < stale) histories.delete(key);
  before = line;
  changes.dispatchEvent(new Event('change'));
}

const sum = values => values.reduce((all, one) => all + one, 0);

function takeCores(line, per) {
  const total = { requests: 0, failed: 0, connections: 0, connections_open: 0, received: 0, sent: 0, flushes: 0 };
  now.cores = line.cores.map((core, nth) => {
    const last = before?.cores[nth];
    const flushes = core.log.flushes - (last?.log.flushes ?? core.log.flushes);
    const flush_us = core.log.flush_us - (last?.log.flush_us ?? core.log.flush_us);
    const rates = {
      turns: per(core.turns, last?.turns),
      requests: per(sum(core.requests), last && sum(last.requests)),
      failed: per(core.requests[5] + core.requests[0], last && last.requests[5] + last.requests[0]),
      connections: per(core.connections, last?.connections),
      received: per(core.received_bytes, last?.received_bytes),
      sent: per(core.sent_bytes, last?.sent_bytes),
      flushes: per(core.log.flushes, last?.log.flushes),
      flushed_bytes: per(core.log.flushed_bytes, last?.log.flushed_bytes),
      flush_us: flushes > 0 ? flush_us / flushes : null,
    };
    for (const key of Object.keys(total)) total[key] += rates[key] ?? 0;
    total.connections_open += core.connections_open;
    note(`core:${nth}:flushes`, rates.flushes, line.time_ms);
    return { ...core, rates };
  });
  const threads = new Map();
  for (const { name, cpu_ms } of line.process.threads) threads.set(name, (threads.get(name) ?? 0) + cpu_ms);
  for (const [name, cpu_ms] of threads) {
    const last = now.threads.get(name);
    const share = per(cpu_ms, last && before ? last.cpu_ms : undefined) / 1000;
    now.threads.set(name, { cpu_ms, share });
    note(`thread:${name}`, share, line.time_ms);
  }
  for (const name of now.threads.keys()) if (!threads.has(name)) now.threads.delete(name);
  now.total = total;
  note('requests', total.requests, line.time_ms);
  note('connections_open', total.connections_open, line.time_ms);
}

function takeBackends(line, per) {
  const lasts = new Map(before?.backends.map(one => [one.key, one]));
  const gone = new Set(now.backends.keys());
  const all = { buckets: line.bounds_us.map(() => 0).concat(0), instances: 0 };
  for (const one of line.backends) {
    gone.delete(one.key);
    const known = now.backends.get(one.key) ?? { snapshots: [] };
    const last = lasts.get(one.key);
    known.snapshots.push(one.buckets);
    if (known.snapshots.length > WINDOW + 1) known.snapshots.shift();
    const recent = one.buckets.map((count, nth) => Math.max(0, count - known.snapshots[0][nth]));
    recent.forEach((count, nth) => (all.buckets[nth] += count));
    Object.assign(known, one, {
      rate: per(one.requests, last?.requests),
      failed: per(one.responses[5] + one.responses[0], last && last.responses[5] + last.responses[0]),
      latency: percentiles(recent, line.bounds_us),
      overall: percentiles(one.buckets, line.bounds_us),
    });
    all.instances += one.endpoints;
    note(`backend:${one.key}`, known.rate, line.time_ms);
    now.backends.set(one.key, known);
  }
  for (const key of gone) now.backends.delete(key);
  const latency = percentiles(all.buckets, line.bounds_us);
  Object.assign(now.total, { latency, instances: all.instances });
  note('p99', latency?.p99 ?? 0, line.time_ms);
  note('instances', all.instances, line.time_ms);
}

function takeStreams(line, per) {
  const last = new Map(before?.streams.map(one => [one.path, one]));
  now.streams = new Map();
  now.subscribers = new Map();
  const total = { accepted: 0, delivered: 0, pending: 0, dead_lettered: 0, dead_letters: 0, dropped: 0, dropped_all: 0 };
  for (const stream of line.streams) {
    const old = last.get(stream.path);
    const olds = new Map(old?.subscribers.map(one => [one.label, one]));
    const rate = per(stream.accepted, old?.accepted);
    total.accepted += rate;
    note(`stream:${stream.path}`, rate, line.time_ms);
    now.streams.set(stream.path, { ...stream, rate });
    for (const one of stream.subscribers) {
      const was = olds.get(one.label);
      const kind = stream.path.startsWith('/brokers/') ? 'trigger' : 'subscription';
      const rates = Object.fromEntries(
        ['offered', 'delivered', 'filtered', 'dead_lettered', 'dropped', 'retries'].map(key => [key, per(one[key], was?.[key])]),
      );
      total.delivered += rates.delivered;
      total.pending += one.pending;
      total.dead_lettered += rates.dead_lettered;
      total.dead_letters += one.dead_lettered;
      total.dropped += rates.dropped;
      total.dropped_all += one.dropped;
      const id = `${kind}/${one.label}`;
      note(`subscriber:${id}`, rates.delivered, line.time_ms);
      now.subscribers.set(id, { ...one, id, kind, stream: stream.path, rates });
    }
  }
  now.total.events = total;
  note('accepted', total.accepted, line.time_ms);
  note('delivered', total.delivered, line.time_ms);
  note('pending', total.pending, line.time_ms);
  note('dead_lettered', total.dead_lettered + total.dropped, line.time_ms);
}

/** Percentiles of a histogram; within a bucket durations are assumed to be spread evenly. `null` without any. */
export function percentiles(buckets, bounds) {
  const count = sum(buckets);
  if (!count) return null;
  const at = share => {
    let rank = share * count;
    for (let nth = 0; nth < buckets.length; nth++) {
      if (rank <= buckets[nth] && buckets[nth] > 0) {
        const from = nth ? bounds[nth - 1] : 0;
        const to = bounds[nth] ?? bounds[bounds.length - 1];
        return from + ((to - from) * rank) / buckets[nth];
      }
      rank -= buckets[nth];
    }
    return bounds[bounds.length - 1];
  };
  return { count, p50: at(0.5), p90: at(0.9), p99: at(0.99) };
}
