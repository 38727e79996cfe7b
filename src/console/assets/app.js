// The frame: navigation by hash, the search box, keys, theme, the token, and the lock of actions.

import { token, unauthorized, whoami } from './api.js';
import { h, render, toast } from './dom.js';
import { changes, follow, now } from './figures.js';
import { events } from './events.js';
import { health } from './health.js';
import { objects } from './objects.js';
import { overview } from './overview.js';

const PAGES = { overview, events, objects, health };
const THEME = 'sluicegate-theme';

export const state = { filter: '', unlocked: false, user: '' };

const main = document.getElementById('main');
const bar = document.getElementById('bar');
let current; // { name, view }
let wantsToken = false;

/** The hash as `{ page, rest, query }`. */
function route() {
  const [path, query = ''] = location.hash.replace(/^#\/?/, '').split('?');
  const [page, ...rest] = path.split('/').map(part => { try { return decodeURIComponent(part); } catch { return part; } });
  return { page: PAGES[page] ? page : 'overview', rest, query: new URLSearchParams(query) };
}

function open() {
  const { page, rest, query } = route();
  if (current?.name !== page) {
    current?.view.close?.();
    state.filter = '';
    main.replaceChildren();
    document.body.dataset.page = page;
    current = { name: page, view: PAGES[page].mount(main, context) };
    main.scrollTop = 0;
  }
  document.title = `${PAGES[page].title} · Sluicegate`;
  current.view.open?.(rest, query);
  update();
}

const context = {
  state,
  /** Whether every word of the search box is in one of the texts. */
  matches: (...texts) => {
    const all = texts.join(' ').toLowerCase();
    return state.filter.toLowerCase().split(/\s+/).every(word => all.includes(word));
  },
  update,
};

function update() {
  drawBar();
  try {
    current?.view.update();
  } catch (error) {
    console.error(error);
    render(main, h('p', { class: 'note bad' }, `This page cannot be drawn: ${error.message}`));
  }
}

function drawBar() {
  const link = (name, { title }, nth) =>
    h('a', { href: `#/${name}`, 'aria-current': current?.name === name ? 'page' : null, title: `${title} (${nth + 1})` }, title);
  const live = now.live ? (now.line.not_ready ? 'warn' : 'ok') : now.at || now.error ? 'bad' : 'idle';
  const said = { ok: 'Live', warn: 'Not ready', bad: 'Disconnected', idle: 'Connecting' }[live];
  render(bar,
    h('a', { class: 'brand', href: '#/overview', 'aria-label': 'Sluicegate, overview' }, h('img', { src: '/assets/icon.svg', alt: '', width: 24, height: 24 }), h('b', null, 'Sluicegate')),
    h('nav', { 'aria-label': 'Pages' }, Object.entries(PAGES).map(([name, page], nth) => link(name, page, nth))),
    h('label', { class: 'search' }, h('span', { class: 'hidden' }, 'Search this page'),
      h('input', { id: 'search', type: 'search', placeholder: PAGES[current?.name ?? 'overview'].search, current: state.filter, autocomplete: 'off', spellcheck: 'false', oninput: event => { state.filter = event.target.value; update(); } }),
      h('kbd', { 'aria-hidden': 'true' }, '/')),
    h('span', { class: ['live', live], title: now.error || now.line?.not_ready || (now.line ? `version ${now.line.version}, table ${now.line.table_version}` : '') }, h('i'), said),
    h('button', { class: ['icon', state.unlocked && 'on'], type: 'button', 'aria-pressed': String(state.unlocked), title: state.unlocked ? 'Actions are allowed; click to lock them' : 'Read-only; click to allow actions', 'aria-label': 'Allow actions', onclick: toggleLock }, state.unlocked ? 'Actions on' : 'Read-only'),
    h('button', { class: 'icon', type: 'button', title: 'Dark or light (t)', 'aria-label': 'Dark or light', onclick: toggleTheme }, isDark() ? '☾' : '☀'),
    h('button', { class: 'icon', type: 'button', title: 'Keys (?)', 'aria-label': 'Keys', onclick: showKeys }, '?'));
}

async function toggleLock() {
  state.unlocked = !state.unlocked;
  if (state.unlocked) {
    state.user = await whoami().catch(() => '');
    toast(`Actions are allowed${state.user ? ` as ${state.user}` : ''}, as far as the API's roles grant them.`);
  }
  update();
}

const isDark = () => {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
};

function toggleTheme() {
  document.documentElement.dataset.theme = isDark() ? 'light' : 'dark';
  localStorage.setItem(THEME, document.documentElement.dataset.theme);
  update();
}

function dialog(...content) {
  const box = h('dialog', { onclick: event => event.target === box && box.close() }, content);
  box.addEventListener('close', () => box.remove());
  document.body.append(box);
  box.showModal();
  return box;
}

function showKeys() {
  const keys = [['/', 'search this page'], ['j, k', 'next and previous row'], ['Enter', 'open the row'], ['Esc', 'close, or clear the search'], ['1 … 4', 'the pages'], ['t', 'dark or light'], ['?', 'these keys']];
  dialog(h('h2', null, 'Keys'), h('dl', { class: 'keys' }, keys.map(([key, what]) => [h('dt', null, h('kbd', null, key)), h('dd', null, what)])),
    h('form', { method: 'dialog' }, h('button', { class: 'primary' }, 'Close')));
}

unauthorized.addEventListener('401', () => {
  if (wantsToken) return;
  wantsToken = true;
  const input = h('input', { type: 'password', name: 'token', autocomplete: 'off', 'aria-label': 'Bearer token', size: 44 });
  const box = dialog(h('h2', null, 'Who are you?'),
    h('p', null, 'The API wants a bearer token. That of the operator is in DATA/api/kubeconfig of the appliance. It is kept until this page is closed.'),
    h('form', { method: 'dialog', onsubmit: () => { token.set(input.value.trim()); location.reload(); } }, input, h('button', { class: 'primary' }, 'Use it')));
  box.addEventListener('close', () => setTimeout(() => (wantsToken = false), 3000));
});

/** The rows that j and k go through. */
const rows = () => [...document.querySelectorAll('[data-row]')].filter(row => row.offsetParent);

function step(by) {
  const all = rows();
  if (!all.length) return;
  const at = all.indexOf(document.activeElement.closest?.('[data-row]'));
  const next = all[at < 0 ? 0 : Math.min(all.length - 1, Math.max(0, at + by))];
  next.focus();
  next.scrollIntoView({ block: 'nearest' });
}

addEventListener('keydown', event => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector('dialog[open]')) return;
  const search = document.getElementById('search');
  const isTyping = /^(input|select)$/i.test(event.target.tagName);
  if (event.key === 'Escape') {
    if (document.activeElement === search && state.filter) state.filter = search.value = '';
    else if (isTyping) event.target.blur();
    else current?.view.escape?.();
    return update();
  }
  if (isTyping) return;
  const pages = Object.keys(PAGES);
  const keys = {
    '/': () => search.focus(), j: () => step(1), k: () => step(-1), t: toggleTheme, '?': showKeys,
    ...Object.fromEntries(pages.map((name, nth) => [String(nth + 1), () => (location.hash = `#/${name}`)])),
    Enter: () => { if (event.target.matches('[data-row]:not(a)')) event.target.click(); else return false; },
  };
  const act = keys[event.key];
  if (act && act() !== false) event.preventDefault();
});

document.documentElement.dataset.theme = localStorage.getItem(THEME) ?? '';
if (!document.documentElement.dataset.theme) delete document.documentElement.dataset.theme;
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', update);
addEventListener('hashchange', open);
changes.addEventListener('change', () => document.hidden || update());
document.addEventListener('visibilitychange', () => document.hidden || update());
open();
follow();
