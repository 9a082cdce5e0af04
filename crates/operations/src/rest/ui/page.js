// The status page: asks this node for `ui/state` each second and draws what it says.
//
// Everything down to `draw` is pure: from the state to a tree of plain objects, which the tests
// look at. The rest puts trees into the document and asks again. Text only ever becomes a text node
// or an attribute, never markup, so names and causes need no escaping.
//
// A field that is missing (an older node, a node that just starts) is left out of the picture.
'use strict';

const HISTORY_MS = 15 * 60 * 1000;
/// The pictures never show less than this, so that the first seconds do not look like hours.
const SPAN_MIN_MS = 60 * 1000;
/// Samples further apart have a hole between them.
const HOLE_MS = 4000;

// --- Numbers and times as people read them ---

const known = (value) => value !== null && value !== undefined;

const thousands = (number) => Math.round(number).toLocaleString('en-US');

/// With the units that PostgreSQL uses: kB is 1024 bytes.
function bytes(count) {
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let at = 0;
  while (count >= 1024 && at < units.length - 1) {
    count /= 1024;
    at += 1;
  }
  const digits = at === 0 || count >= 100 ? 0 : 1;
  return `${count.toFixed(digits)} ${units[at]}`;
}

const milliseconds = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(2)} s`);

/// A length of time, in its two largest units.
function span(ms) {
  let left = Math.max(0, Math.floor(ms / 1000));
  const parts = [];
  for (const [unit, seconds] of [['d', 86400], ['h', 3600], ['min', 60], ['s', 1]]) {
    const count = Math.floor(left / seconds);
    left -= count * seconds;
    if (count > 0 || (unit === 's' && parts.length === 0)) parts.push(`${count} ${unit}`);
  }
  return parts.slice(0, 2).join(' ');
}

function clock(unixMs) {
  const two = (number) => String(number).padStart(2, '0');
  const time = new Date(unixMs);
  return `${two(time.getHours())}:${two(time.getMinutes())}:${two(time.getSeconds())}`;
}

function day(unixMs) {
  const time = new Date(unixMs);
  const two = (number) => String(number).padStart(2, '0');
  return `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())}`;
}

/// "a", "a and b", "a, b and c"
function list(names) {
  if (names.length < 2) return names.join('');
  return `${names.slice(0, -1).join(', ')} and ${names[names.length - 1]}`;
}

const words = (name) => String(name).replaceAll('_', ' ');

// --- Trees: what `draw` makes elements of ---

function h(tag, attributes, ...children) {
  const flat = children.flat(Infinity).filter((child) => known(child) && child !== false);
  return { tag, attributes: attributes || {}, children: flat.map((c) => (c.tag ? c : String(c))) };
}

/// One shape for each level, so that colour is never alone.
function shape(level) {
  const paths = {
    ok: 'M12 2a10 10 0 1 0 0 20a10 10 0 1 0 0-20zM10.6 16.4l-4.2-4.2 1.6-1.6 2.6 2.6 5.8-5.8 1.6 1.6z',
    warn: 'M12 2.5 23 21.5H1zM10.9 9.5v6h2.2v-6zM10.9 17v2.2h2.2v-2.2z',
    bad: 'M8 2h8l6 6v8l-6 6H8l-6-6V8zM10.9 6.5v7.5h2.2V6.5zM10.9 15.6v2.2h2.2v-2.2z',
    none: 'M12 3a9 9 0 1 0 0 18a9 9 0 1 0 0-18zM12 5.4a6.6 6.6 0 1 1 0 13.2a6.6 6.6 0 1 1 0-13.2z',
  };
  const path = h('path', { d: paths[level] || paths.bad, 'fill-rule': 'evenodd', fill: 'currentColor' });
  return h('svg', { viewBox: '0 0 24 24', 'aria-hidden': 'true' }, path);
}

const facts = (pairs) => h('dl', { class: 'facts' }, pairs
  .filter(([, value]) => known(value))
  .map(([name, value]) => [h('dt', null, name), h('dd', null, value)]));

const card = (tag, kind, ...children) => h(tag, { class: `card ${kind}`.trim() }, ...children);

// --- The one line that says whether all is well ---

const standbysOf = (state) => (state.nodes || []).filter((node) => node.role === 'standby' && node.reachable);
const warmOf = (state) => standbysOf(state).filter((node) => node.state === 'warm');
const zonesDown = (state) => (state.zones || []).filter((zone) => !zone.up);
const zoneName = (zone) => `Zone ${zone.zone}`;

/// How bad it is (`ok`, `warn`, `bad`, `down`), a headline, and what else one should know at once.
function verdict(state) {
  const details = [];
  const down = zonesDown(state);
  const zones = state.zones || [];
  const enough = zones.length - down.length >= (state.sync_replicas || 0);
  if (down.length > 0) {
    const names = [...new Set(down.map(zoneName))];
    const effect = enough ? 'nothing is lost; what it misses is sent later' : 'too few are left for commits, which wait';
    details.push(`${list(names)} ${names.length === 1 ? 'does' : 'do'} not answer this node: ${effect}.`);
  }
  for (const zone of zones.filter((zone) => zone.rebuilding)) {
    details.push(`${zoneName(zone)} lost its disk and is being rebuilt.`);
  }
  if (state.trouble) details.push(`This node cannot read the registry: ${state.trouble}.`);
  if (state.paused) details.push(pauseText(state.paused, state.unix_ms));
  if (state.scheduled_switchover) details.push(scheduleText(state.scheduled_switchover, state.unix_ms));
  const said = state.active ? serving(state, details) : unserved(state, details);
  if (!enough && zones.length > 0) {
    const up = zones.length - down.length;
    return { level: 'down', headline: `Storage: only ${up} of ${zones.length} ${up === 1 ? 'answers' : 'answer'}`, details };
  }
  const troubled = down.length > 0 || state.paused || state.trouble || zones.some((zone) => zone.rebuilding);
  if (said.level === 'ok' && troubled) {
    return { level: 'warn', headline: `${state.active} serves, with reservations`, details };
  }
  return { ...said, details };
}

function pauseText(paused, now) {
  const since = known(paused.since_unix_ms) ? ` for ${span(now - paused.since_unix_ms)}` : '';
  const by = paused.by ? `, by ${paused.by}` : '';
  const reason = paused.reason ? ` (${paused.reason})` : '';
  return `Automatic takeover is paused${since}${by}${reason}: a failure waits for an operator.`;
}

function scheduleText(order, now) {
  const to = order.to ? ` to ${order.to}` : '';
  return `A switchover${to} is scheduled in ${span(order.at_unix_ms - now)}, at ${clock(order.at_unix_ms)}.`;
}

function serving(state, details) {
  const active = state.active;
  const protection = state.protection || {};
  const since = known(protection.since_unix_ms) ? ` for ${span(state.unix_ms - protection.since_unix_ms)}` : '';
  const warm = warmOf(state).map((node) => node.name);
  const ready = warm.length === 0 ? 'a standby is' : warm.length > 2 ? `${warm.length} standbys are`
    : `${list(warm)} ${warm.length === 1 ? 'is' : 'are'}`;
  for (const node of (state.nodes || []).filter((node) => !node.reachable && node.state !== 'stopped')) {
    details.push(`${node.name} does not answer.`);
  }
  const count = known(protection.warm) && known(protection.wanted)
    ? `${protection.warm} of ${protection.wanted} standbys could take over at once` : null;
  const restored = known(protection.restored_after_ms)
    ? `; the last loss of protection was made good in ${milliseconds(protection.restored_after_ms)}` : '';
  switch (protection.level) {
    case 'protected':
      details.unshift(`Protected${since}${restored}.`);
      return { level: 'ok', headline: `All is well: ${active} serves, ${ready} ready to take over` };
    case 'degraded':
      details.unshift(`Degraded${since}: ${count || 'fewer standbys than wanted could take over at once'}.`);
      return { level: 'warn', headline: `${active} serves, protection is degraded` };
    case 'unprotected':
      details.unshift(`Unprotected${since}: no standby could take over at once.`);
      return { level: 'bad', headline: `${active} serves, unprotected` };
    default:
      details.unshift('Whether a standby could take over is not known here.');
      return { level: 'warn', headline: `${active} serves` };
  }
}

function unserved(state, details) {
  const beat = state.heartbeat;
  const so = known(state.unserved_since_unix_ms) ? ` for ${span(state.unix_ms - state.unserved_since_unix_ms)}` : '';
  if (!beat) {
    return { level: 'down', headline: 'Nobody serves: no node has served yet, or the zones do not answer' };
  }
  if (beat.state === 'taking_over' && beat.silent_ms < 10000) {
    details.unshift(`Epoch ${beat.epoch} is owned; clients reconnect when the log is replayed.`);
    return { level: 'bad', headline: `${beat.node} is taking over; nobody serves${so}` };
  }
  const last = {
    postgres_dead: `PostgreSQL of ${beat.node} died`,
    released: `${beat.node} stopped cleanly`,
    taking_over: `${beat.node} began to take over and fell silent`,
  }[beat.state] || `${beat.node} fell silent`;
  const silent = known(beat.silent_ms) ? `; last heartbeat ${span(beat.silent_ms)} ago` : '';
  details.unshift(`${last}${silent}.`);
  const warm = standbysOf(state).map((node) => node.name);
  if (warm.length === 0) details.push('No standby answers: start a node.');
  else if (state.paused) details.push(`${list(warm)} waits for an order.`);
  else details.push(`${list(warm)} could take over.`);
  return { level: 'down', headline: `Nobody serves${so}` };
}

function verdictTree(state) {
  const { level, headline, details } = verdict(state);
  return [h('div', { class: `verdict ${level}` }, shape(level),
    h('div', null, h('h1', { role: 'status' }, headline), h('ul', null, details.map((line) => h('li', null, line)))))];
}

// --- Nodes and zones ---

/// A node's role and state as words, and how bad that is.
function condition(node) {
  if (!node.reachable) {
    const was = node.role === 'active' ? 'was the active' : words(node.role || 'node');
    return ['bad', `${was}, no answer`];
  }
  const role = node.role || 'node';
  const level = { serving: 'ok', warm: 'ok', catching_up: 'warn', starting: 'warn', stopped: 'none' }[node.state];
  if (role === 'spare') return ['none', 'spare'];
  return [level || (node.state === 'failing' ? 'bad' : 'none'), known(node.state) ? `${words(role)}, ${words(node.state)}` : words(role)];
}

function nodeTree(node, origin) {
  const [level, word] = condition(node);
  const standby = node.role === 'standby' && node.reachable;
  const link = node.rest && origin ? h('a', { href: `${origin}//${node.rest}/ui` }, node.name) : node.name;
  const warm = standby && known(node.warm_percent);
  const meter = warm && h('span', { class: 'meter', 'aria-hidden': 'true' },
    h('span', { style: { width: `${Math.min(100, Math.max(0, node.warm_percent))}%` } }));
  return card('li', node.reachable ? '' : 'quiet',
    h('div', { class: 'top' }, h('h3', null, link), h('span', { class: `word ${level}` }, shape(level), word)),
    facts([
      ['Lag', standby && known(node.lag_bytes) ? bytes(node.lag_bytes) : null],
      ['Warmth', warm ? [meter, `${Math.round(node.warm_percent)} %`] : null],
      ['Commits', node.role === 'active' && node.reachable && known(node.commits_per_second) ? `${thousands(node.commits_per_second)} /s` : null],
      ['Timeline', node.reachable ? node.timeline : null],
      ['Base moved', standby && known(node.base_moves) ? `${thousands(node.base_moves)} times` : null],
      ['Overlay', standby && known(node.overlay_bytes) ? bytes(node.overlay_bytes) : null],
      ['Zone', node.zone],
      ['PostgreSQL', node.postgres],
      ['Takes over', node.nofailover ? 'never by itself' : null],
      ['Restart', node.pending_restart ? 'pending' : null],
    ]),
    node.trouble ? h('p', { class: 'note' }, node.trouble) : null);
}

function nodesTree(state, origin) {
  const order = { active: 0, standby: 1 };
  const rank = (node) => (node.reachable ? order[node.role] ?? 2 : 3);
  const nodes = [...(state.nodes || [])].sort((a, b) => rank(a) - rank(b) || (a.name < b.name ? -1 : 1));
  if (nodes.length === 0) return [h('li', { class: 'none' }, 'No node is known yet.')];
  return nodes.map((node) => nodeTree(node, origin));
}

/// A proxy as it tells of itself; one that has reported nothing yet has a name alone.
function proxyTree(proxy) {
  const report = proxy.report || {};
  const waits = report.waiting > 0;
  const [level, word] = !proxy.report ? ['none', 'has reported nothing yet'] : waits ? ['warn', 'clients wait'] : ['ok', 'serves'];
  const reads = known(report.on_standbys) && known(report.on_active) ? report.on_standbys + report.on_active : 0;
  const share = reads > 0 ? `${Math.round((100 * report.on_standbys) / reads)} % of ${thousands(reads)}` : null;
  const undecided = report.in_doubt_unknown > 0 ? `, ${thousands(report.in_doubt_unknown)} not decided` : '';
  return card('li', proxy.report ? '' : 'quiet',
    h('div', { class: 'top' }, h('h3', null, (proxy.who || {}).node || 'a proxy'),
      h('span', { class: `word ${level}` }, shape(level), word)),
    facts([
      ['Address', report.listen],
      ['Clients', known(report.clients) ? thousands(report.clients) + (waits ? `, ${thousands(report.waiting)} wait` : '') : null],
      ['On standbys', share],
      ['Run again', report.replayed > 0 ? `${thousands(report.replayed)} transactions` : null],
      ['In doubt', report.in_doubt > 0 ? `${thousands(report.in_doubt)} commits${undecided}` : null],
    ]));
}

const proxiesTree = (state) => (state.proxies || []).map(proxyTree);

/// A repository of backups, as who archives into it says.
function backupTree(backup) {
  const late = backup.lag_ms > 60000;
  const [level, word] = backup.trouble ? ['bad', 'fails'] : !known(backup.age_ms) ? ['warn', 'no image yet']
    : late ? ['warn', 'is late'] : ['ok', 'archives'];
  return card('li', '',
    h('div', { class: 'top' }, h('h3', null, backup.repository), h('span', { class: `word ${level}` }, shape(level), word)),
    facts([
      ['By', backup.by],
      ['Last image', known(backup.age_ms) ? `${span(backup.age_ms)} ago` : null],
      ['Log', known(backup.lag_ms) ? `complete ${span(backup.lag_ms)} ago` : null],
      ['Not copied', backup.lag_bytes > 0 ? bytes(backup.lag_bytes) : null],
      ['Last drill', known(backup.drill_age_ms) ? `${span(backup.drill_age_ms)} ago` : 'never'],
      ['Trouble', backup.trouble],
    ]));
}

/// A branch of the database: a volume that is laid over an image of it.
function branchTree(branch, now) {
  const expired = known(branch.expires_unix_ms) && branch.expires_unix_ms <= now;
  const [level, word] = branch.current ? ['ok', 'is the database'] : branch.state !== 'ready' ? ['warn', branch.state]
    : expired ? ['warn', 'expired'] : ['ok', 'ready'];
  return card('li', '',
    h('div', { class: 'top' }, h('h3', null, branch.name), h('span', { class: `word ${level}` }, shape(level), word)),
    facts([
      ['Made', `${span(now - branch.created_unix_ms)} ago`],
      ['Own blocks', known(branch.used_bytes) ? bytes(branch.used_bytes) : null],
      ['Expires', known(branch.expires_unix_ms) && !expired ? `in ${span(branch.expires_unix_ms - now)}` : null],
      ['Volume', branch.volume],
    ]));
}

const branchesTree = (state) => (state.branches || []).map((branch) => branchTree(branch, state.unix_ms));

const backupsTree = (state) => (state.backups || []).map(backupTree);

function zoneTree(zone) {
  const state = !zone.up ? ['bad', 'down'] : zone.rebuilding ? ['warn', 'rebuilding']
    : zone.missed_blocks > 0 ? ['warn', 'catching up'] : ['ok', 'up'];
  const [level, word] = state;
  return card('li', zone.up ? '' : 'quiet',
    h('div', { class: 'top' }, h('h3', null, `Zone ${zone.zone}`), h('span', { class: `word ${level}` }, shape(level), word)),
    facts([
      ['Server', zone.address],
      ['Latency', zone.up && known(zone.round_trip_ms) ? `${zone.round_trip_ms.toFixed(1)} ms` : null],
      ['Used', known(zone.used_bytes) ? bytes(zone.used_bytes) : null],
      ['Writes', known(zone.writes_per_second) ? `${thousands(zone.writes_per_second)} blocks/s` : null],
      ['Reads', known(zone.reads_per_second) ? `${thousands(zone.reads_per_second)} blocks/s` : null],
      ['Lacks', zone.missed_blocks > 0 ? `${thousands(zone.missed_blocks)} blocks yet` : null],
    ]),
    zone.trouble ? h('p', { class: 'note bad' }, zone.trouble) : null);
}

const zonesTree = (state) => ((state.zones || []).length > 0 ? state.zones.map(zoneTree)
  : [h('li', { class: 'none' }, 'Nothing is known of the zones yet.')]);

// --- Pictures of the last minutes ---

/// From when to when the pictures are.
function extent(samples, now) {
  const first = samples.length > 0 ? samples[0].unix_ms : now;
  return { from: Math.max(now - HISTORY_MS, Math.min(first, now - SPAN_MIN_MS)), to: now };
}

/// New samples behind those already here. What is too old goes, and what lies in the future since the
/// node's clock was set back.
function merge(samples, more, now) {
  const kept = samples.filter((sample) => sample.unix_ms > now - HISTORY_MS && sample.unix_ms <= now);
  const last = kept.length > 0 ? kept[kept.length - 1].unix_ms : -Infinity;
  return kept.concat(more.filter((sample) => sample.unix_ms > last));
}

/// The least round number that is not less: the upper end of a scale.
function scale(most, base) {
  let unit = base;
  for (;;) {
    for (const step of [1, 1.5, 2, 3, 5, 8]) if (most <= unit * step) return unit * step;
    unit *= 10;
  }
}

/// The same for bytes: powers of two.
function byteScale(most, base) {
  let end = base;
  while (end < most) end *= 2;
  return end;
}

/// Runs of points without a hole, as `[x, value]`, x from 0 to 1000.
function runs(samples, pick, { from, to }) {
  const found = [];
  let before = -Infinity;
  for (const sample of samples) {
    const value = pick(sample);
    if (!known(value) || sample.unix_ms < from) continue;
    if (sample.unix_ms - before > HOLE_MS) found.push([]);
    before = sample.unix_ms;
    found[found.length - 1].push([(1000 * (sample.unix_ms - from)) / (to - from), value]);
  }
  return found;
}

/// One of the small multiples: `{ title, pick, show, floor, scale }` over the same time as the others.
function chartTree(chart, samples, times, changes) {
  const parts = runs(samples, chart.pick, times);
  const values = parts.flat().map(([, value]) => value);
  const most = values.reduce((a, b) => Math.max(a, b), 0);
  const end = chart.scale(most, chart.floor);
  const y = (value) => (98 - (96 * value) / end).toFixed(1);
  const line = (points) => points.map(([x, value], at) => `${at === 0 ? 'M' : 'L'}${x.toFixed(1)} ${y(value)}`).join('');
  const last = samples.length > 0 ? chart.pick(samples[samples.length - 1]) : null;
  const now = known(last) ? chart.show(last) : 'unknown';
  const drawn = parts.filter((points) => points.length > 1).map((points) => [
    h('path', { class: 'area', d: `${line(points)}L${points[points.length - 1][0].toFixed(1)} 98L${points[0][0].toFixed(1)} 98Z` }),
    h('path', { class: 'line', d: line(points) }),
  ]);
  const grid = [2, 50, 98].map((at) => h('line', { class: 'grid', x1: 0, x2: 1000, y1: at, y2: at }));
  const marks = changes.map((x) => h('line', { class: 'change', x1: x.toFixed(1), x2: x.toFixed(1), y1: 0, y2: 100 }));
  const label = `${chart.title}: now ${now}, at most ${chart.show(most)} in the last ${span(times.to - times.from)}`;
  return card('figure', 'chart',
    h('figcaption', { class: 'top' }, h('h3', null, chart.title), h('span', { class: 'now' }, known(last) ? now : '–')),
    h('div', { class: 'plot' },
      h('svg', { viewBox: '0 0 1000 100', preserveAspectRatio: 'none', role: 'img', 'aria-label': label }, grid, drawn, marks),
      h('span', { class: 'most' }, chart.show(end))));
}

const perSecond = (number) => (number < 10 && number > 0 ? number.toFixed(1) : thousands(number));

/// What is drawn: throughput, then the lag of every node that was a standby meanwhile.
function charts(samples) {
  const standbys = [...new Set(samples.flatMap((sample) => Object.keys(sample.lag_bytes || {})))].sort();
  const lag = (name) => ({
    title: `Lag of ${name}`,
    // Own properties alone: a node may be called "constructor".
    pick: (sample) => (Object.hasOwn(sample.lag_bytes || {}, name) ? sample.lag_bytes[name] : null),
    show: bytes, floor: 64 * 1024, scale: byteScale,
  });
  return [
    { title: 'Commits per second', pick: (s) => s.commits_per_second, show: perSecond, floor: 10, scale },
    { title: 'Log per second', pick: (s) => s.log_bytes_per_second, show: bytes, floor: 64 * 1024, scale: byteScale },
    ...standbys.map(lag),
  ];
}

/// Where changes of the active are in the pictures.
function changesIn(state, { from, to }) {
  const times = (state.takeovers || []).map((change) => change.unix_ms);
  return times.filter((at) => at > from && at < to).map((at) => (1000 * (at - from)) / (to - from));
}

function chartsTree(state, samples) {
  const times = extent(samples, state.unix_ms);
  const changes = changesIn(state, times);
  return charts(samples).map((chart) => chartTree(chart, samples, times, changes));
}

function axisTree(state, samples) {
  const times = extent(samples, state.unix_ms);
  const marked = changesIn(state, times).length > 0;
  const seconds = Math.round((times.to - times.from) / 10000) * 10;
  return [h('span', null, `${span(seconds * 1000)} ago`),
    marked ? h('span', null, 'dashed: another node became the active') : null,
    h('span', null, 'now')].filter(known);
}

/// Who served when: one stretch for each active, and for nobody.
function stretches(samples) {
  const found = [];
  let before = null;
  for (const sample of samples) {
    const last = found[found.length - 1];
    const gap = before !== null && sample.unix_ms - before > HOLE_MS;
    if (last && last.active === (sample.active ?? null) && !gap) {
      last.to = sample.unix_ms;
    } else {
      // A stretch lasts until the next begins, unless nobody looked in between.
      if (last && !gap) last.to = sample.unix_ms;
      found.push({ active: sample.active ?? null, from: sample.unix_ms, to: sample.unix_ms });
    }
    before = sample.unix_ms;
  }
  return found;
}

function servedTree(state, samples) {
  const times = extent(samples, state.unix_ms);
  const names = [...new Set(samples.map((sample) => sample.active).filter(known))].sort();
  const width = (ms) => (100 * ms) / (times.to - times.from);
  const parts = stretches(samples).map(({ active, from, to }) => {
    const who = active ?? 'nobody';
    const share = width(to - from);
    const said = `${who} served from ${clock(from)} to ${clock(to)}`;
    const kind = active === null ? 'nobody' : `n${(names.indexOf(active) % 6) + 1}`;
    return h('span', { class: kind, title: said, style: { left: `${width(from - times.from)}%`, width: `max(3px, ${share}%)` } },
      share > 6 ? who : null);
  });
  const said = stretches(samples).map((s) => `${s.active ?? 'nobody'} for ${span(s.to - s.from)}`);
  return [h('div', { class: 'strip', role: 'img', 'aria-label': `Who served: ${said.join(', then ')}` }, parts)];
}

// --- Changes of the active ---

const CAUSES = {
  created: 'created', started: 'start, nobody was active', failover: 'takeover', switchover: 'switchover', forced: 'forced takeover',
};

const DECIDED = { operator: 'ordered by an operator', automatic: 'decided by itself' };

/// A number for each phase, the same in every bar.
function phaseNumbers(takeovers) {
  const usual = ['detect', 'fence', 'log_tail', 'replay', 'promote', 'first_commit'];
  const seen = takeovers.flatMap((change) => (change.phases || []).map((phase) => phase.phase));
  const all = [...new Set([...usual.filter((phase) => seen.includes(phase)), ...seen])];
  return new Map(all.map((phase, at) => [phase, at + 1]));
}

const totalMs = (change) => (change.phases || []).reduce((sum, phase) => sum + phase.ms, 0);

function takeoverTree(change, numbers, longest, now) {
  const total = totalMs(change);
  const phases = change.phases || [];
  const kind = (phase) => `f${((numbers.get(phase) - 1) % 6) + 1}`;
  const what = CAUSES[change.cause] || words(change.cause || 'change');
  const who = change.previous && change.previous !== change.node ? `${change.previous} → ${change.node}` : change.node;
  const evidence = [change.evidence].flat().filter(known).map(String).join('; ');
  const why = [what, evidence].filter((part) => part !== '').join(': ');
  const decided = DECIDED[change.decided_by] && change.cause !== 'created' ? ` · ${DECIDED[change.decided_by]}` : '';
  const width = (ms) => ({ width: `${(100 * ms) / longest}%` });
  const spoken = phases.map((phase) => `${words(phase.phase)} ${milliseconds(phase.ms)}`).join(', ');
  const ago = now - change.unix_ms;
  return card('li', 'takeover',
    h('div', { class: 'top' }, h('h3', null, who), h('span', { class: 'total' }, phases.length > 0 ? milliseconds(total) : null)),
    h('p', { class: 'why' }, why, decided, ' · ',
      h('time', { datetime: new Date(change.unix_ms).toISOString() }, `${day(change.unix_ms)} ${clock(change.unix_ms)}`),
      ago >= 0 ? ` (${span(ago)} ago)` : '', ` · epoch ${change.epoch}, timeline ${change.timeline}`),
    total > 0 ? h('div', { class: 'bar', role: 'img', 'aria-label': spoken },
      phases.map((phase) => h('span', {
        class: kind(phase.phase), style: width(phase.ms), title: `${words(phase.phase)} ${milliseconds(phase.ms)}`,
      }, phase.ms > longest / 30 ? numbers.get(phase.phase) : null))) : null,
    phases.length > 0 ? h('ul', { class: 'legend' }, phases.map((phase) => h('li', null,
      h('b', { class: kind(phase.phase) }, numbers.get(phase.phase)), words(phase.phase), ' ',
      h('span', { class: 'ms' }, milliseconds(phase.ms))))) : null);
}

function takeoversTree(state) {
  const takeovers = state.takeovers || [];
  if (takeovers.length === 0) return [h('li', { class: 'none' }, 'None is recorded yet.')];
  const numbers = phaseNumbers(takeovers);
  const longest = takeovers.reduce((most, change) => Math.max(most, totalMs(change)), 1);
  return takeovers.map((change) => takeoverTree(change, numbers, longest, state.unix_ms));
}

/// The whole page: the trees of each place in the document.
function page(state, samples, origin) {
  return {
    volume: [known(state.volume) ? `volume ${state.volume}` : ''],
    verdict: verdictTree(state),
    nodes: nodesTree(state, origin),
    proxies: proxiesTree(state),
    backups: backupsTree(state),
    branches: branchesTree(state),
    served: servedTree(state, samples),
    charts: chartsTree(state, samples),
    axis: axisTree(state, samples),
    takeovers: takeoversTree(state),
    zones: zonesTree(state),
  };
}

function title(state) {
  const { level, headline } = verdict(state);
  return `${{ ok: '✓', warn: '△' }[level] || '✕'} ${headline} · ${state.volume}`;
}

/// What the banner says while nothing is heard: `since` when, and the next try in how long.
function staleText(now, since, nextTry) {
  const wait = Math.max(0, Math.ceil((nextTry - now) / 1000));
  return `Stale since ${clock(since)} (${span(now - since)}): this node does not answer. `
    + (wait > 0 ? `Next try in ${wait} s.` : 'Trying again …');
}

/// How long to wait after so many failures in a row.
const backOff = (failures) => Math.min(15000, 1000 * 2 ** Math.max(0, failures - 1));

// --- From trees to the document ---

const SVG = new Set(['svg', 'path', 'line', 'rect']);

function make(tree) {
  if (typeof tree === 'string') return document.createTextNode(tree);
  const element = SVG.has(tree.tag)
    ? document.createElementNS('http://www.w3.org/2000/svg', tree.tag) : document.createElement(tree.tag);
  renew(element, tree);
  return element;
}

function renew(element, tree) {
  for (const { name } of [...element.attributes]) {
    if (name !== 'style' && !(name in tree.attributes)) element.removeAttribute(name);
  }
  for (const [name, value] of Object.entries(tree.attributes)) {
    // Not as an attribute: the page's policy forbids inline styles.
    if (name === 'style') Object.assign(element.style, value);
    else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
  }
  draw(element, tree.children);
}

/// Makes the children of `parent` those of the trees. Elements stay where they can, so that focus and
/// selection do, and nothing is announced that did not change.
function draw(parent, trees) {
  trees.forEach((tree, at) => {
    const have = parent.childNodes[at];
    if (have && typeof tree === 'string' && have.nodeType === Node.TEXT_NODE) {
      if (have.data !== tree) have.data = tree;
    } else if (have && tree.tag && have.localName === tree.tag) {
      renew(have, tree);
    } else if (have) {
      have.replaceWith(make(tree));
    } else {
      parent.append(make(tree));
    }
  });
  while (parent.childNodes.length > trees.length) parent.lastChild.remove();
}

// --- Asking ---

const ASK_WITHIN_MS = 4000;
const EVERY_MS = 1000;
const EVERY_HIDDEN_MS = 10000;

function start() {
  const at = (id) => document.getElementById(id);
  let samples = [];
  let failures = 0;
  let heardAt = Date.now();
  let nextTry = 0;

  function show(state) {
    samples = merge(samples, state.samples || [], state.unix_ms);
    for (const [id, trees] of Object.entries(page(state, samples, location.protocol))) draw(at(id), trees);
    draw(at('seen'), [`as seen by ${state.node} at ${clock(state.unix_ms)}`]);
    document.title = title(state);
  }

  function tellAge() {
    const stale = failures > 0;
    document.body.classList.toggle('stale', stale);
    draw(at('stale'), stale ? [staleText(Date.now(), heardAt, nextTry)] : []);
    if (stale) document.title = `✕ stale · ${document.title.replace(/^✕ stale · /, '')}`;
  }

  async function fetched() {
    const after = samples.length > 0 ? `?after=${samples[samples.length - 1].unix_ms}` : '';
    const answer = await fetch(`ui/state${after}`, { cache: 'no-store', signal: AbortSignal.timeout(ASK_WITHIN_MS) });
    if (!answer.ok) throw new Error(`the node answers ${answer.status}`);
    return answer.json();
  }

  async function ask() {
    const state = await fetched().catch(() => null);
    failures = state ? 0 : failures + 1;
    if (state) heardAt = Date.now();
    const wait = failures > 0 ? backOff(failures) : document.hidden ? EVERY_HIDDEN_MS : EVERY_MS;
    nextTry = Date.now() + wait;
    timer = setTimeout(ask, wait);
    tellAge();
    // Last: a mistake in drawing is told on the console, and the next answer is asked for all the same.
    if (state) show(state);
  }

  let timer = setTimeout(ask, 0);
  setInterval(tellAge, 1000);
  document.addEventListener('visibilitychange', () => {
    if (document.hidden || nextTry - Date.now() < EVERY_MS) return;
    clearTimeout(timer);
    ask();
  });
}

// The tests load this file without the page.
if (document.getElementById('verdict')) start();
