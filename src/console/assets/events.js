// Events: the topology with live rates, traces, and dead letters.

import { discovery, list } from './api.js';
import { h, render } from './dom.js';
import { now } from './figures.js';
import { count } from './format.js';
import { deadLetters } from './dead-letters.js';
import { topology } from './topology.js';
import { traces } from './trace.js';

export const events = { title: 'Events', search: 'Search Brokers, Triggers, events', mount };

const READ_MS = 4000;
const MESSAGING = '/apis/messaging.knative.dev/v1';
const EVENTING = '/apis/eventing.knative.dev/v1';

/** The objects that events pass through. */
const model = { brokers: [], channels: [], triggers: [], subscriptions: [], sources: [], read: 0, problem: '' };

async function read() {
  const options = { most: 1000 };
  const [brokers, triggers, channels, own, subscriptions] = await Promise.all([
    list(`${EVENTING}/brokers`, options), list(`${EVENTING}/triggers`, options), list(`${MESSAGING}/channels`, options),
    list(`${MESSAGING}/inmemorychannels`, options), list(`${MESSAGING}/subscriptions`, options),
  ]);
  const kinds = (await discovery()).filter(one => one.group.startsWith('sources.') || one.categories.includes('sources'));
  const sources = [];
  for (const kind of kinds) {
    const found = await list(kind.path, { most: 200 }).catch(() => []);
    sources.push(...found.map(one => ({ ...one, kind: kind.kind, id: kind.id })));
  }
  // A Channel has an InMemoryChannel of its name, which is where its events are.
  const named = new Set(channels.map(one => `${one.metadata.namespace}/${one.metadata.name}`));
  const alone = own.filter(one => !named.has(`${one.metadata.namespace}/${one.metadata.name}`)).map(one => ({ ...one, kind: 'InMemoryChannel' }));
  Object.assign(model, { brokers, triggers, channels: [...channels.map(one => ({ ...one, kind: 'Channel' })), ...alone], subscriptions, sources, read: Date.now(), problem: '' });
}

function mount(main, context) {
  const tabs = { topology: topology(context, model), trace: traces(context), 'dead-letters': deadLetters(context) };
  let tab = 'topology';
  let isReading = false;
  let version = -1;
  const refresh = async () => {
    const isDue = now.line && (now.line.table_version !== version || !model.read);
    if (isReading || !isDue) return;
    isReading = true;
    version = now.line.table_version;
    await read().catch(error => (model.problem = error.message));
    setTimeout(() => (isReading = false), READ_MS);
    context.update();
  };
  const link = (name, text, number) => h('a', { href: `#/events/${name}`, 'aria-current': tab === name ? 'page' : null }, text, number > 0 && h('span', { class: 'tag bad' }, count(number)));
  const update = () => {
    refresh();
    render(main,
      h('h1', { class: 'hidden' }, 'Events'),
      h('div', { class: 'tabs' },
        h('nav', { 'aria-label': 'Events' }, link('topology', 'Topology'), link('trace', 'Trace'), link('dead-letters', 'Dead letters', tabs['dead-letters'].count())),
        tabs[tab].tools?.()),
      model.problem && h('p', { class: 'note bad', role: 'alert' }, model.problem),
      tabs[tab].draw());
  };
  return {
    update,
    open: (rest, query) => {
      tab = tabs[rest[0]] ? rest[0] : 'topology';
      tabs[tab].open?.(rest.slice(1), query);
    },
    escape: () => tabs[tab].escape?.(),
    close: () => Object.values(tabs).forEach(one => one.close?.()),
  };
}
