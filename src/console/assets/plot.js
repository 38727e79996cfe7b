// Small plots, drawn as SVG. Colours come from the style sheet.

import { h, s } from './dom.js';
import { history } from './figures.js';
import { duration, count } from './format.js';

/** A line with the area below it. Values are spread over the width, the newest at the right. */
export function sparkline(values, { width = 120, height = 28, label, tone = '', max } = {}) {
  const top = Math.max(max ?? 0, ...values, 1e-9);
  const step = width / Math.max(1, 60 - 1);
  const shown = values.slice(-60);
  const x = nth => width - (shown.length - 1 - nth) * step;
  const y = value => height - 2 - (value / top) * (height - 5);
  const points = shown.map((value, nth) => `${x(nth).toFixed(1)},${y(value).toFixed(1)}`);
  const area = points.length > 1 ? `M${x(0).toFixed(1)},${height}L${points.join('L')}L${width},${height}Z` : '';
  return s('svg', { class: ['spark', tone], viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: 'none', role: 'img', 'aria-label': label },
    s('path', { class: 'spark-area', d: area }),
    s('path', { class: 'spark-line', d: points.length > 1 ? `M${points.join('L')}` : '', 'vector-effect': 'non-scaling-stroke' }));
}

/** Parts of a whole: `[{ value, tone, name }]`. */
export function stack(parts, { label, max } = {}) {
  const total = max ?? parts.reduce((all, one) => all + one.value, 0);
  const shown = parts.filter(one => one.value > 0);
  const text = `${label}: ${shown.map(one => `${one.name} ${count(one.value)}`).join(', ') || 'none'}`;
  return h('div', { class: 'stack', role: 'img', 'aria-label': text },
    shown.map(one => h('span', {
      class: ['stack-part', one.tone], title: `${one.name}: ${count(one.value)}`,
      style: { width: `${(100 * one.value) / Math.max(total, 1e-9)}%` },
    })));
}

/** How much of a limit is used. */
export function meter(used, max, { label, text } = {}) {
  const share = max > 0 ? Math.min(1, used / max) : 0;
  const tone = share >= 0.9 ? 'bad' : share >= 0.75 ? 'warn' : 'ok';
  return h('div', { class: 'meter', role: 'meter', 'aria-label': label, 'aria-valuemin': 0, 'aria-valuemax': max, 'aria-valuenow': used, 'aria-valuetext': text },
    h('span', { class: tone, style: { width: `${Math.max(share * 100, used > 0 ? 0.6 : 0)}%` } }));
}

const TICKS = [1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 6e7];

/** The domain of a logarithmic axis of durations that has all of `values`. */
export function domain(values) {
  const low = Math.min(...values, 1e4), high = Math.max(...values, 1e3);
  const from = [...TICKS].reverse().find(tick => tick <= low) ?? TICKS[0];
  const to = TICKS.find(tick => tick >= high) ?? TICKS[TICKS.length - 1];
  return { from, to: to > from ? to : from * 10, ticks: TICKS.filter(tick => tick >= from && tick <= Math.max(to, from * 10)) };
}

/** Percentiles on that axis: a band from the median to the 99th, and a mark at the 90th. */
export function percentileBand(latency, { from, to, ticks }, label) {
  const x = us => (100 * Math.log(Math.max(us, from) / from)) / Math.log(to / from);
  const text = `${label}: median ${duration(latency.p50)}, 90 % ${duration(latency.p90)}, 99 % ${duration(latency.p99)}`;
  return h('div', { class: 'band', role: 'img', 'aria-label': text, title: text },
    ticks.slice(1, -1).map(tick => h('i', { class: 'band-tick', style: { left: `${x(tick)}%` } })),
    h('span', { class: 'band-range', style: { left: `${x(latency.p50)}%`, width: `${Math.max(0.8, x(latency.p99) - x(latency.p50))}%` } }),
    h('span', { class: 'band-p90', style: { left: `${x(latency.p90)}%` } }),
    h('span', { class: 'band-p50', style: { left: `${x(latency.p50)}%` } }));
}

/** The labels of that axis. */
export function axis({ from, to, ticks }) {
  const x = us => (100 * Math.log(us / from)) / Math.log(to / from);
  return h('div', { class: 'axis', 'aria-hidden': 'true' },
    ticks.map(tick => h('span', { style: { left: `${x(tick)}%` } }, duration(tick).replace(/\.0+ /, ' '))));
}

/** Phases in a row on a common scale: `[{ name, us, tone }]`. */
export function phases(parts, max, label) {
  const shown = parts.filter(one => one.us > 0);
  const text = `${label}: ${shown.map(one => `${one.name} ${duration(one.us)}`).join(', ')}`;
  return h('div', { class: 'phases', role: 'img', 'aria-label': text },
    shown.map(one => h('span', {
      class: ['phase', one.tone], title: `${one.name}: ${duration(one.us)}`, style: { width: `${(100 * one.us) / max}%` },
    })));
}

/** A dot with the colour of a state, and the state as text for those who do not see it. */
export const dot = (tone, text) => h('i', { class: ['dot', tone], role: 'img', 'aria-label': text, title: text });

/** A figure with its history. */
export const tile = (name, value, unit, more, key, tone) =>
  h('section', { class: 'tile', 'aria-label': name },
    h('h2', null, name),
    h('p', { class: 'figure' }, value, unit && h('small', null, unit)),
    h('p', { class: 'more' }, more),
    sparkline(history(key), { width: 200, height: 40, label: `${name}, the last minute`, tone }));
