// Requests to the API and to the admin listener's paths, both through the console's own origin.

const TOKEN = 'sluicegate-token';

export const token = {
  get: () => sessionStorage.getItem(TOKEN) ?? '',
  set: value => (value ? sessionStorage.setItem(TOKEN, value) : sessionStorage.removeItem(TOKEN)),
};

/** Called when the API wants to know who this is. */
export const unauthorized = new EventTarget();

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const TABLE = 'application/json;as=Table;v=v1;g=meta.k8s.io,application/json';
const GROUPS = 'application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json';

export async function send(path, { method = 'GET', accept = 'application/json', body, type, signal } = {}) {
  const headers = { Accept: accept };
  if (token.get()) headers.Authorization = `Bearer ${token.get()}`;
  if (body !== undefined) headers['Content-Type'] = type ?? 'application/json';
  const payload = body === undefined ? undefined : JSON.stringify(body);
  const response = await fetch(path, { method, headers, body: payload, signal, cache: 'no-store' });
  if (response.ok) return response;
  const text = await response.text();
  let message = text.trim() || response.statusText;
  try {
    message = JSON.parse(text).message ?? message;
  } catch {
    // The admin paths answer with text.
  }
  if (response.status === 401) unauthorized.dispatchEvent(new Event('401'));
  throw new ApiError(response.status, message);
}

export const get = async (path, options) => (await send(path, options)).json();

/** Lines of a response that does not end by itself. */
export async function* lines(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const parts = (rest + value).split('\n');
      rest = parts.pop();
      yield* parts;
    }
    if (rest) yield rest;
  } finally {
    reader.cancel().catch(() => {});
  }
}

const withQuery = (path, query) => {
  const pairs = Object.entries(query).filter(([, value]) => value !== undefined && value !== '');
  return pairs.length ? `${path}?${new URLSearchParams(pairs)}` : path;
};

/** Pages of a list, until there are no more. */
export async function* pages(path, { limit = 500, table = false, signal, ...query } = {}) {
  let next;
  do {
    const page = await get(withQuery(path, { limit, continue: next, ...query }), { accept: table ? TABLE : undefined, signal });
    next = page.metadata?.continue || undefined;
    yield page;
  } while (next);
}

/** All objects of a list, at most `most`. */
export async function list(path, { most = 2000, ...options } = {}) {
  const items = [];
  for await (const page of pages(path, options)) {
    items.push(...(page.items ?? []));
    if (items.length >= most) break;
  }
  return items;
}

/** Changes of a list after a version, as rows of a table or as objects. Ends when the server ends it. */
export async function* watch(path, { version, table = false, signal }) {
  const query = { watch: 'true', resourceVersion: version, allowWatchBookmarks: 'true' };
  const response = await send(withQuery(path, query), { accept: table ? TABLE : undefined, signal });
  for await (const line of lines(response)) if (line) yield JSON.parse(line);
}

export const patch = (path, body) => send(path, { method: 'PATCH', body, type: 'application/merge-patch+json' });

let kinds;

/** All kinds that can be listed, in the order of their groups. */
export function discovery() {
  kinds ??= readKinds().catch(error => {
    kinds = undefined;
    throw error;
  });
  return kinds;
}

async function readKinds() {
  const [core, named] = await Promise.all(['/api', '/apis'].map(path => get(path, { accept: GROUPS })));
  const found = [];
  for (const group of [...core.items, ...named.items]) {
    const version = group.versions[0];
    for (const one of version.resources) {
      if (!one.verbs.includes('list')) continue;
      const group_name = group.metadata.name ?? '';
      const base = group_name ? `/apis/${group_name}/${version.version}` : `/api/${version.version}`;
      found.push({
        group: group_name, version: version.version, plural: one.resource, kind: one.responseKind.kind,
        namespaced: one.scope === 'Namespaced', watchable: one.verbs.includes('watch'), categories: one.categories ?? [], base,
        path: `${base}/${one.resource}`, id: `${group_name || 'core'}/${version.version}/${one.resource}`,
      });
    }
  }
  return found;
}

/** The path of one object of a kind. */
export const objectPath = (kind, namespace, name) =>
  `${kind.base}/${kind.namespaced ? `namespaces/${namespace}/` : ''}${kind.plural}/${name}`;

export const condition = (object, type = 'Ready') => object.status?.conditions?.find(one => one.type === type);

/** Whether the API's roles allow this caller an action. */
export async function may(verb, group, resource, namespace, name) {
  const spec = { resourceAttributes: { verb, group, resource, namespace, name } };
  const review = { apiVersion: 'authorization.k8s.io/v1', kind: 'SelfSubjectAccessReview', spec };
  const answer = await send('/apis/authorization.k8s.io/v1/selfsubjectaccessreviews', { method: 'POST', body: review });
  return (await answer.json()).status.allowed === true;
}

/** The caller's name. */
export async function whoami() {
  const review = { apiVersion: 'authentication.k8s.io/v1', kind: 'SelfSubjectReview' };
  const answer = await send('/apis/authentication.k8s.io/v1/selfsubjectreviews', { method: 'POST', body: review });
  return (await answer.json()).status.userInfo.username;
}
