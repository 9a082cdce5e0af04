// What the page's pure functions make of states, and what the document becomes. Loaded behind page.js
// in an empty page; `results()` tells what is wrong.
'use strict';

const wrong = [];
let checked = 0;

function equal(what, actual, expected) {
  checked += 1;
  const [a, e] = [actual, expected].map((value) => JSON.stringify(value));
  if (a !== e) wrong.push(`${what}: ${a}, not ${e}`);
}

function holds(what, condition) {
  equal(what, Boolean(condition), true);
}

const NOW = 1_700_000_000_000;

const node = (name, role, state, more) => ({
  name, role, state, reachable: true, postgres: `${name}:5432`, rest: `${name}:8008`, timeline: 3, epoch: 4, ...more,
});

const zone = (number, more) => ({
  zone: number, address: `10.0.${number}.1:7101`, up: true, round_trip_ms: 0.7, used_bytes: 3 * 1024 ** 3,
  writes_per_second: 1210.4, reads_per_second: 3, missed_blocks: 0, rebuilding: false, ...more,
});

const takeover = (more) => ({
  number: 4, epoch: 4, node: 'south', previous: 'north', cause: 'failover', evidence: 'its connection was reset',
  phases: [{ phase: 'detect', ms: 112 }, { phase: 'fence', ms: 24 }, { phase: 'log_tail', ms: 41 },
    { phase: 'replay', ms: 187 }, { phase: 'promote', ms: 1233 }],
  timeline: 3, unix_ms: NOW - 61_000, ...more,
});

function healthy(more) {
  return {
    volume: 'main', node: 'south', unix_ms: NOW, replicas: 3, sync_replicas: 2, active: 'south',
    heartbeat: { epoch: 4, node: 'south', state: 'serving', silent_ms: 80 },
    protection: { level: 'protected', since_unix_ms: NOW - 190_000 },
    nodes: [node('north', 'standby', 'warm', { lag_bytes: 4711, warm_percent: 97.4 }),
      node('south', 'active', 'serving', { commits_per_second: 803.2 })],
    zones: [zone(0), zone(1), zone(2)], takeovers: [takeover()], ...more,
  };
}

function samples(count, active = () => 'south') {
  return [...Array(count).keys()].map((at) => {
    const who = active(at);
    return {
      unix_ms: NOW - (count - 1 - at) * 1000, lag_bytes: { north: 1000 * (at % 7) },
      ...(who ? { active: who, commits_per_second: 800 + at, log_bytes_per_second: 2e6 } : {}),
    };
  });
}

/// Draws a state into a new element for each place of the page.
function drawn(state, ring) {
  const places = {};
  for (const [id, trees] of Object.entries(page(state, ring, 'http:'))) {
    places[id] = document.createElement('div');
    draw(places[id], trees);
  }
  return places;
}

function numbersAreReadable() {
  equal('bytes', [0, 1023, 1024, 4711, 123456789, 5 * 1024 ** 4].map(bytes), ['0 B', '1023 B', '1.0 kB', '4.6 kB', '118 MB', '5.0 TB']);
  equal('span', [0, 999, 61_000, 3_600_000, 90_061_000].map(span), ['0 s', '0 s', '1 min 1 s', '1 h', '1 d 1 h']);
  equal('milliseconds', [3, 999, 1250].map(milliseconds), ['3 ms', '999 ms', '1.25 s']);
  equal('list', [['a'], ['a', 'b'], ['a', 'b', 'c']].map(list), ['a', 'a and b', 'a, b and c']);
  equal('scale', [0, 10, 11, 1050, 9000].map((most) => scale(most, 10)), [10, 10, 15, 1500, 10000]);
}

function theVerdictSaysWhetherAllIsWell() {
  const said = (more) => { const { level, headline } = verdict(healthy(more)); return [level, headline]; };
  equal('well', said({}), ['ok', 'All is well: south serves, north is ready to take over']);
  const protection = (level) => ({ protection: { level, since_unix_ms: NOW - 5000, wanted: 2, warm: 1, restored_after_ms: 4100 } });
  equal('degraded', said(protection('degraded')), ['warn', 'south serves, protection is degraded']);
  equal('how many', verdict(healthy(protection('degraded'))).details, ['Degraded for 5 s: 1 of 2 standbys could take over at once.']);
  equal('made good', verdict(healthy(protection('protected'))).details, ['Protected for 5 s; the last loss of protection was made good in 4.10 s.']);
  equal('unprotected', said(protection('unprotected')), ['bad', 'south serves, unprotected']);
  equal('one zone down', said({ zones: [zone(0), zone(1, { up: false }), zone(2)] }), ['warn', 'south serves, with reservations']);
  equal('two zones down', said({ zones: [zone(0), zone(1, { up: false }), zone(2, { up: false })] }), ['down', 'Storage: only 1 of 3 answers']);
  const paused = { since_unix_ms: NOW - 60_000, by: 'anna', reason: 'new switches' };
  equal('paused', said({ paused })[0], 'warn');
  holds('why', verdict(healthy({ paused })).details.includes(
    'Automatic takeover is paused for 1 min, by anna (new switches): a failure waits for an operator.'));
  const order = { at_unix_ms: NOW + 300_000, to: 'north', by: 'anna' };
  equal('scheduled', said({ scheduled_switchover: order })[0], 'ok');
  holds('when', verdict(healthy({ scheduled_switchover: order })).details[1].startsWith('A switchover to north is scheduled in 5 min'));
  const gone = { active: null, protection: null, unserved_since_unix_ms: NOW - 12_000 };
  const beat = (state, silent_ms) => ({ heartbeat: { epoch: 5, node: 'south', state, silent_ms } });
  equal('silent', said({ ...gone, ...beat('serving', 12_000) }), ['down', 'Nobody serves for 12 s']);
  equal('taking over', said({ ...gone, ...beat('taking_over', 100) }), ['bad', 'south is taking over; nobody serves for 12 s']);
  holds('the dead one is named', verdict(healthy({ ...gone, ...beat('postgres_dead', 1) })).details[0].includes('PostgreSQL of south died'));
  equal('nothing known', verdict({ unix_ms: NOW }).level, 'down');
}

function everyNodeIsShownWithWordsAndNumbers() {
  const { nodes, zones } = drawn(healthy(), samples(10));
  equal('the active first', [...nodes.querySelectorAll('h3')].map((e) => e.textContent), ['south', 'north']);
  holds('state in words', nodes.textContent.includes('standby, warm') && nodes.textContent.includes('active, serving'));
  holds('lag and warmth', nodes.textContent.includes('4.6 kB') && nodes.textContent.includes('97 %'));
  equal('link to its page', nodes.querySelector('a').href, 'http://south:8008/ui');
  holds('zones', zones.textContent.includes('0.7 ms') && zones.textContent.includes('3.0 GB') && zones.textContent.includes('up'));
  const dead = drawn(healthy({ nodes: [node('south', 'active', 'serving', { reachable: false, trouble: 'no agent listens' })] }), []);
  holds('one that is gone', dead.nodes.textContent.includes('was the active, no answer') && dead.nodes.textContent.includes('no agent listens'));
}

function proxiesAreShownIfThereAreAny() {
  equal('none', drawn(healthy(), []).proxies.childNodes.length, 0);
  const report = {
    listen: '10.0.0.9:6432', clients: 12, waiting: 3, on_active: 250, on_standbys: 750, replayed: 2, in_doubt: 4, in_doubt_unknown: 1,
  };
  const { proxies } = drawn(healthy({ proxies: [{ who: { node: 'app' }, report }, { who: { node: 'new' } }] }), []);
  equal('names', [...proxies.querySelectorAll('h3')].map((e) => e.textContent), ['app', 'new']);
  for (const text of ['10.0.0.9:6432', '12, 3 wait', '75 % of 1,000', '4 commits, 1 not decided', 'has reported nothing yet']) {
    holds(text, proxies.textContent.includes(text));
  }
}

function namesAreNeverMarkup() {
  const evil = '"><img src=x onerror=alert(1)><script>alert(2)</script>';
  const state = healthy({
    volume: evil, active: evil, nodes: [node(evil, 'active', 'serving', { trouble: evil }), node('b', 'standby', evil)],
    zones: [zone(0, { address: evil, trouble: evil })], proxies: [{ who: { node: evil }, report: { listen: evil, clients: 1 } }],
    takeovers: [takeover({ node: evil, previous: evil, cause: evil, evidence: evil, phases: [{ phase: evil, ms: 3 }] })],
  });
  const ring = samples(10, () => evil).map((s) => ({ ...s, lag_bytes: { [evil]: 5, constructor: 3, __proto__: null } }));
  for (const [id, place] of Object.entries(drawn(state, ring))) {
    equal(`${id}: no element of theirs`, place.querySelectorAll('img, script').length, 0);
  }
  holds('but readable', drawn(state, ring).takeovers.textContent.includes(evil));
}

function picturesShowTheSamples() {
  const { charts: multiples, served } = drawn(healthy(), samples(120, (at) => (at < 50 ? 'north' : at < 60 ? null : 'south')));
  const titles = [...multiples.querySelectorAll('h3')].map((e) => e.textContent);
  equal('one for each', titles, ['Commits per second', 'Log per second', 'Lag of north']);
  equal('drawn', multiples.querySelectorAll('svg path.line').length, 2 + 2 + 1);
  equal('the takeover is marked', multiples.querySelectorAll('svg .change').length, 3);
  const [first] = multiples.querySelectorAll('svg');
  holds('and told', first.getAttribute('aria-label').includes('now 919'));
  equal('who served', [...served.querySelectorAll('span')].map((e) => e.textContent), ['north', 'nobody', 'south']);
  const numbers = first.querySelector('.line').getAttribute('d').match(/[\d.]+/g).map(Number);
  holds('inside', numbers.every((number) => number >= 0 && number <= 1000));
}

function samplesAreMergedAndForgotten() {
  const ring = merge(samples(5), samples(5).concat([{ unix_ms: NOW + 1000, lag_bytes: {} }]), NOW + 1000);
  equal('only new ones', ring.length, 6);
  equal('old ones go', merge(samples(900), [], NOW + 600_000).length, 300);
  equal('the future goes, when the clock was set back', merge(samples(5), [{ unix_ms: NOW - 2500, lag_bytes: {} }], NOW - 2500).length, 3);
  const hole = samples(20).filter((_, at) => at < 5 || at > 12);
  equal('a hole is no line', runs(hole, (s) => s.commits_per_second, extent(hole, NOW)).length, 2);
}

function takeoversAreBarsOfTheirPhases() {
  const created = takeover({ number: 1, epoch: 1, cause: 'created', evidence: undefined, previous: null, node: 'north', phases: [] });
  const short = takeover({ epoch: 3, cause: 'switchover', evidence: undefined, phases: [{ phase: 'promote', ms: 400 }] });
  const { takeovers } = drawn(healthy({ takeovers: [takeover(), short, created] }), []);
  const [bar, shorter] = takeovers.querySelectorAll('.bar');
  equal('phases', bar.children.length, 5);
  equal('same scale', parseFloat(shorter.children[0].style.width).toFixed(2), ((100 * 400) / 1597).toFixed(2));
  equal('same number', shorter.children[0].className, bar.children[4].className);
  holds('in words', bar.getAttribute('aria-label').includes('log tail 41 ms, replay 187 ms, promote 1.23 s'));
  const text = takeovers.textContent;
  holds('cause', text.includes('takeover: its connection was reset') && text.includes('north → south'));
  holds('total', text.includes('1.60 s') && text.includes('1 min 1 s ago'));
  holds('who decided', drawn(healthy({ takeovers: [takeover({ decided_by: 'operator' })] }), []).takeovers.textContent.includes('ordered by an operator'));
  equal('one without phases', takeovers.children[2].querySelectorAll('.bar').length, 0);
}

function littleIsShownWhenLittleIsKnown() {
  const places = drawn({ unix_ms: NOW, nodes: [{ name: 'x' }], zones: null }, []);
  holds('a bare node', places.nodes.textContent.includes('x'));
  holds('no zones', places.zones.textContent.includes('Nothing is known'));
  const text = Object.values(places).map((place) => place.textContent).join(' ');
  holds('nothing undefined', !/undefined|NaN|null|Infinity/.test(text));
  const html = Object.values(drawn(healthy(), samples(3))).map((place) => place.innerHTML).join(' ');
  holds('no odd number', !/undefined|NaN|Infinity/.test(html));
}

function staleIsSaidAndTriedLessOften() {
  equal('back-off', [1, 2, 3, 4, 5, 9].map(backOff), [1000, 2000, 4000, 8000, 15000, 15000]);
  const text = staleText(NOW + 14_200, NOW, NOW + 16_000);
  holds('since', text.includes(`Stale since ${clock(NOW)} (14 s)`) && text.includes('Next try in 2 s'));
}

function elementsStayWhereTheyCan() {
  const place = document.createElement('div');
  draw(place, nodesTree(healthy(), 'http:'));
  const before = place.querySelector('a');
  draw(place, nodesTree(healthy({ nodes: [node('south', 'active', 'serving', { commits_per_second: 9 })] }), 'http:'));
  holds('the same link', before === place.querySelector('a') && place.children.length === 1);
  holds('with new text', place.textContent.includes('9 /s') && !place.textContent.includes('803'));
}

function results() {
  [numbersAreReadable, theVerdictSaysWhetherAllIsWell, everyNodeIsShownWithWordsAndNumbers, proxiesAreShownIfThereAreAny,
    namesAreNeverMarkup,
    picturesShowTheSamples, samplesAreMergedAndForgotten, takeoversAreBarsOfTheirPhases, littleIsShownWhenLittleIsKnown,
    staleIsSaidAndTriedLessOften, elementsStayWhereTheyCan].forEach((test) => {
    try {
      test();
    } catch (error) {
      wrong.push(`${test.name}: ${error.stack}`);
    }
  });
  return { checked, wrong };
}
