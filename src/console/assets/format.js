// Figures as people read them.

const NONE = '–';

const isMissing = value => Number.isNaN(value ?? NaN);

export function count(value) {
  if (isMissing(value)) return NONE;
  if (value < 10_000) return Math.round(value).toLocaleString('en');
  for (const [unit, size] of [['G', 1e9], ['M', 1e6], ['k', 1e3]]) {
    if (value >= size) return `${trim(value / size)}${unit}`;
  }
  return String(value);
}

const trim = value => (value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2));

/** A rate per second: small ones keep their decimals. */
export function rate(value) {
  if (isMissing(value)) return NONE;
  if (value === 0) return '0';
  if (value < 0.1) return '<0.1';
  if (value < 10) return value.toFixed(1);
  return count(value);
}

export function bytes(value) {
  if (isMissing(value)) return NONE;
  for (const [unit, size] of [['TiB', 2 ** 40], ['GiB', 2 ** 30], ['MiB', 2 ** 20], ['KiB', 2 ** 10]]) {
    if (value >= size) return `${trim(value / size)} ${unit}`;
  }
  return `${Math.round(value)} B`;
}

/** Microseconds. */
export function duration(us) {
  if (isMissing(us)) return NONE;
  if (us < 1000) return `${Math.round(us)} µs`;
  if (us < 10_000) return `${(us / 1e3).toFixed(1)} ms`;
  if (us < 1e6) return `${Math.round(us / 1e3)} ms`;
  if (us < 60e6) return `${trim(us / 1e6)} s`;
  return age(us / 1e3);
}

/** Milliseconds, as kubectl shows an age. */
export function age(ms) {
  const seconds = Math.max(0, Math.floor(ms / 1000));
  if (seconds < 120) return `${seconds}s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 120) return `${minutes}m`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours}h`;
  return `${Math.floor(hours / 24)}d`;
}

export const since = time => (time ? age(Date.now() - Date.parse(time)) : NONE);

export function percent(share, digits = 0) {
  if (!Number.isFinite(share)) return NONE;
  return `${(share * 100).toFixed(digits)} %`;
}

/** `1 event`, `2 events`. */
export const plural = (number, word) => `${count(number)} ${word}${number === 1 ? '' : 's'}`;

export const clock = time => new Date(time).toLocaleTimeString('en-GB', { hour12: false });
