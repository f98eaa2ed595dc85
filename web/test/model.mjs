// The page's pure part: what follows from what supervisors say. Run by internal/supervisor's TestBrowserModel.
import ts from 'typescript'
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import test from 'node:test'

const load = (name) => {
  const source = ts.transpileModule(readFileSync(new URL(`../src/${name}.ts`, import.meta.url), 'utf8'), { compilerOptions: { module: ts.ModuleKind.ESNext, target: ts.ScriptTarget.ES2022 } })
  return import('data:text/javascript,' + encodeURIComponent(source.outputText))
}
const { Model, badCables, badLinks, boxes, cableWords, causeNames, causeWords, course, deathWords, doingWords, ends, folded, groupWords, incidentWords, merged, namedNodes, partWords, past, pastGroups, plain, planeOffer, racks, step, worstFirst, worstPartsFirst } = await load('model')
const { wordsOf } = await load('words'), torusWords = wordsOf(false), plainWords = wordsOf(true)
const { most, placed } = await load('labels')
const { Pace } = await load('pace')

const changed = (rev, time, at, from, to, part = 'node') => ({ rev, time, at, from, to, part, cause: 9 })
const died = [changed(2, 5000, '0,0,0', 'NORMAL', 'UNKNOWN'), changed(3, 5000, '0,0,0', 'UNKNOWN', 'FAILED'), changed(4, 6000, '1,0,0', 'NORMAL', 'SICK', 'link/X+'), changed(5, 7000, '1,0,0', 'NORMAL', 'FAILED')]

/** torus has two nodes and died's changes behind it. */
function torus() {
  const m = Model.of({ dims: [2, 1, 1], states: 'NN', causes: '00', flags: '00', names: { 1: 'last' }, directions: [0, 1], links: [], masked: [] })
  for (const c of died) assert.ok(m.apply(c))
  return m
}

test('a link leads past empty places to the next node', () => {
  // 4x2: x 1 of y 0 is empty, and all of y 1 but its first place.
  const m = Model.of({ dims: [4, 2, 1], empty: [1, 5, 6, 7], states: 'N.NNN...', causes: '00000000', flags: '00000000', names: {}, directions: [0, 1, 2, 3], links: [[0, 0, 4, 0], [2, 1, 4, 0]], masked: [[0, 0, 0, 0]] })
  assert.equal(m.neighbour(0, 0), 2)
  assert.equal(m.neighbour(2, 1), 0)
  assert.equal(m.span(0, 0), 2)
  assert.equal(m.span(2, 1), 2)
  assert.equal(m.span(3, 0), 1, 'around the edge')
  assert.equal(m.links[6 * 1], 0, 'an empty place has no link')
  assert.equal(m.links[6 * 4], 0, 'nor has a node that is alone on its line')
  assert.equal(m.links[6 * 4 + 2], 2)
  assert.equal(m.masked[6 * 2 + 1], 1)
  assert.deepEqual(badCables(m).map((c) => cableWords(m, c)), ['n0-0-0 X+ n2-0-0'])
  assert.equal(m.clone().neighbour(0, 0), 2)
  assert.equal(past(m, [], 0).neighbour(0, 0), 2)
})

test('the map has the cause of each node', () => {
  const m = Model.of({ dims: [3, 1, 1], states: 'NSF', causes: '1a9', flags: '000', names: {}, directions: [0, 1], links: [], masked: [] })
  assert.deepEqual([...m.causes].map((c) => causeNames[c]), ['', 'BUS', 'NODE'])
})

test('the timeline ends now, however short it is', () => {
  // A range that reaches into the future stretches the past: a moment asked for by its place was a later one.
  for (const now of [7000, 9000, 60_000]) assert.equal(ends(died, now)[1], now)
  assert.deepEqual(ends(died, 9000), [-1000, 9000])
  assert.deepEqual(ends(died, 60_000), [5000, 60_000])
  assert.deepEqual(ends([], 60_000), [50_000, 60_000])
  assert.deepEqual(ends(died, 6500), [-3000, 7000], 'a clock that is behind leaves no event out')
})

test('the map of a moment has the changes up to it, and no later one', () => {
  const at = (t) => { const m = past(torus(), died, t); return [m.nodes[0], m.nodes[1], m.links[6], m.causes[0]] }
  assert.deepEqual(at(4999), [2, 2, 2, 0])
  assert.deepEqual(at(5000), [4, 2, 2, 9])
  assert.deepEqual(at(6999), [4, 2, 3, 9])
  assert.deepEqual(at(7000), [4, 4, 3, 9])
  assert.deepEqual(course(torus(), died).map((s) => s.counts.join()), ['0,1,1,0,0', '0,0,1,0,1', '0,0,0,0,2'])
})

test('steps go by what the map shows', () => {
  const events = [...died, { rev: 6, time: 8000, kind: 'WARNING_CHANGED', part: 'memory' }, { ...changed(7, 9000, '0,0,0', 'FAILED', 'FAILED') }]
  const back = [undefined]
  for (let i = 0; i < 4; i++) back.push(step(events, back.at(-1), -1))
  assert.deepEqual(back, [undefined, 6999, 5999, 4999, 4999])
  assert.deepEqual([4999, 5000, 6500, 7000, undefined].map((t) => step(events, t, 1)), [5000, 6000, undefined, undefined, undefined])
  assert.equal(step([], undefined, -1), undefined)
})

test('events that are read are told once, in order', () => {
  const revs = (list) => list.map((c) => c.rev).join()
  assert.equal(revs(merged(died.slice(2), died.slice(0, 3))), '2,3,4,5')
  assert.equal(revs(merged(died.slice(0, 1), died.slice(2))), '2,4,5')
  assert.equal(revs(merged(died, [])), '2,3,4,5')
  assert.equal(revs(merged([], died)), '2,3,4,5')
})

test('a group is framed by one box where its members fill it', () => {
  const m = Model.of({ dims: [4, 3, 2], states: 'N'.repeat(24), causes: '0'.repeat(24), flags: '0'.repeat(24), names: { 5: 'login' }, directions: [], links: [], masked: [] })
  const ranks = (...c) => c.map((x) => m.rank(x))
  assert.deepEqual(boxes(m, ranks([0, 1, 1], [1, 1, 1], [2, 1, 1], [3, 1, 1])), [[[0, 1, 1], [3, 1, 1]]])
  assert.deepEqual(boxes(m, ranks([1, 1, 0], [1, 2, 0], [1, 1, 1], [1, 2, 1], [1, 2, 1])), [[[1, 1, 0], [1, 2, 1]]])
  assert.deepEqual(boxes(m, ranks([3, 0, 0], [0, 0, 0], [1, 0, 0], [0, 1, 0])), [[[0, 0, 0], [1, 0, 0]], [[3, 0, 0], [3, 0, 0]], [[0, 1, 0], [0, 1, 0]]])
  assert.deepEqual(boxes(m, []), [])
  assert.equal(m.find('login'), 5)
  assert.equal(m.find('n1-1-0'), -1, 'the place of login gives no name')
  assert.equal(m.find('3,2,1'), 23)
})

/** grid has every node NORMAL and every link of three dimensions. */
const grid = (...dims) => {
  const n = dims[0] * dims[1] * dims[2]
  return Model.of({ dims, states: 'N'.repeat(n), causes: '0'.repeat(n), flags: '0'.repeat(n), names: {}, directions: [0, 1, 2, 3, 4, 5], links: [], masked: [] })
}
/** dies makes a node FAILED, and its neighbours' links to it. */
const dies = (m, r) => {
  m.nodes[r] = 4
  m.causes[r] = 9
  for (let d = 0; d < 6; d++) m.links[6 * m.neighbour(r, d) + (d ^ 1)] = 4
}

test('a broken cable has one name, and the links of a dead node or half have none', () => {
  const m = grid(3, 3, 3)
  dies(m, m.find('1,1,1'))
  m.nodes[m.find('0,0,2')] = 3 // its DNP half is dead
  m.causes[m.find('0,0,2')] = 7
  m.links[6 * m.find('1,0,2') + 1] = 4
  m.links[6 * m.find('2,0,0')] = 4 // a cut cable that leads to the other side, seen from both ends
  m.links[6 * m.find('0,0,0') + 1] = 4
  m.links[6 * m.find('0,1,0') + 3] = 3 // a sick one, seen from its far end alone
  assert.deepEqual(badCables(m).map((c) => `${cableWords(m, c)} ${c.state}`), ['n0-0-0 Y+ n0-1-0 3', 'n2-0-0 X+ n0-0-0 4'])
})

test('all of few nodes are named, and of many those that are not normal', () => {
  const few = grid(3, 3, 3), many = grid(4, 4, 4)
  assert.equal(namedNodes(few, -1).length, 27)
  assert.deepEqual(namedNodes(many, -1), [])
  many.nodes[5] = 3
  many.nodes[9] = 4
  many.flags[2] = 1
  assert.deepEqual(namedNodes(many, 60), [9, 5, 2, 60], 'the gravest first')
  assert.deepEqual(namedNodes(many, 9), [9, 5, 2])
})

test('the plane with most faults is offered where nodes in front hide the middle', () => {
  const m = grid(4, 4, 4)
  assert.equal(planeOffer(m), undefined, 'nothing is hidden while all is normal')
  for (const at of ['1,2,2', '2,2,2', '1,1,3']) m.nodes[m.find(at)] = 4
  assert.deepEqual(planeOffer(m), { axis: 2, at: 2, shown: 2, all: 3 })
  for (const at of ['1,1,3', '1,2,3']) m.links[6 * m.find(at)] = 3 // sick cables along X do not show in a plane of constant X
  m.nodes[m.find('1,1,3')] = 2
  assert.deepEqual(planeOffer(m), { axis: 1, at: 2, shown: 3, all: 4 })
  m.nodes[m.find('3,2,0')] = 3
  assert.deepEqual(planeOffer(m), { axis: 1, at: 2, shown: 4, all: 5 })
  const small = grid(3, 3, 3)
  dies(small, 13)
  assert.equal(planeOffer(small), undefined, 'of few nodes all are seen')
  const flat = grid(20, 20, 2)
  dies(flat, 0)
  assert.equal(planeOffer(flat), undefined, 'nothing is in the middle')
})

test('names do not cover each other, and what must be named is', () => {
  const measure = (t) => 9 * t.length
  const label = (i, x, y, must) => ({ text: `node-${i}`, state: must ? 4 : 2, x, y, off: 8, must })
  const crowd = Array.from({ length: 30 }, (_, i) => label(i, 400 + 20 * (i % 6), 300 + 20 * Math.floor(i / 6), true))
  const out = placed([...crowd, label(99, 450, 350, false)], 800, 600, measure)
  assert.deepEqual(out.map((o) => o.text), crowd.map((c) => c.text), 'every fault is named; a normal node among them is not')
  for (const [i, a] of out.entries()) {
    assert.ok(a.left >= 0 && a.left + a.width <= 800 && a.middle >= 0 && a.middle <= 600, `${a.text} leaves the window`)
    for (const b of out.slice(i + 1)) assert.ok(a.left >= b.left + b.width || b.left >= a.left + a.width || Math.abs(a.middle - b.middle) >= 20, `${a.text} covers ${b.text}`)
  }
  assert.ok(out.some((o) => o.line) && out.some((o) => !o.line), 'a line leads to a name that is not beside its sign, and to no other')
  const many = Array.from({ length: 500 }, (_, i) => label(i, 40 * (i % 25), 30 * Math.floor(i / 25), true))
  assert.equal(placed(many, 4000, 4000, measure).length, most)
  assert.deepEqual(placed([label(1, -5, 10, true)], 800, 600, measure), [], 'what is not in the window has no name')
})

test('a group has a name for people', () => {
  for (const [g, want] of [[{ id: 'row/Y=1,Z=2' }, 'row Y=1,Z=2'], [{ id: 'label/rack=r7/LINK' }, 'rack r7, LINK'], [{ id: 'west/plane/X=3', region: 'west' }, 'west: plane X=3']]) assert.equal(groupWords(g, torusWords), want)
})

test('responses of one policy that do the same are one item', () => {
  const waits = { policy: 'tell', mode: 'OBSERVE_ONLY', state: 'RESPONSE_WAITING' }
  assert.deepEqual(doingWords({ responses: [waits, { ...waits, closed: '2026-01-01T00:00:00Z' }, { policy: 'ring', mode: 'ENFORCE', state: 'RESPONSE_WAITING', result: 'approval' }, waits] }),
    ['policy tell: observe-only, nothing is done (2 responses)', 'policy ring: waiting, approval'])
  assert.deepEqual(doingWords({}), [])
})

test('an incident has its cause in plain words', () => {
  assert.match(causeWords({ component: 'node', fault: 'FAILED', cause: 'NODE' }, torusWords), /^both halves of the node are dead/)
  assert.match(causeWords({ component: 'link/X+', fault: 'SICK', cause: 'LINK' }, torusWords), /loses or damages frames$/)
  assert.match(causeWords({ group: 'label/rack=r7/NODE', component: 'group' }, torusWords), /^nodes with rack=r7 have the same fault/)
  assert.match(causeWords({ group: 'plane/X=1/LINK', component: 'group' }, torusWords), /^all links between two planes have failed/)
  assert.match(causeWords({ group: 'plane/X=1/HOST', component: 'group' }, torusWords), /^neighbouring nodes have the same fault/)
  assert.equal(causeWords({ component: 'host', fault: 'SICK', cause: 'HOST' }, torusWords), 'HOST')
  assert.equal(causeWords({ component: 'new-part' }, torusWords), 'not known')
})

test('the worst incident comes first', () => {
  const all = [
    { id: 'a', state: 'OPEN', severity: 'WARNING', component: 'link/X+', node: 'n0-0-0', peer: 'n1-0-0', fault: 'FAILED', since: '2027-01-01T00:00:00Z' },
    { id: 'b', state: 'RECOVERING', severity: 'CRITICAL', component: 'node', node: 'n1-0-1', fault: 'FAILED', since: '2027-01-01T00:00:01Z' },
    { id: 'c', state: 'OPEN', severity: 'CRITICAL', component: 'host', node: 'n2-0-1', fault: 'FAILED', since: '2027-01-01T00:00:03Z', acknowledgement: { by: 'operator/alice', time: '' } },
    { id: 'd', state: 'OPEN', severity: 'CRITICAL', component: 'group', group: 'label/rack=r7', fault: 'FAILED', since: '2027-01-01T00:00:04Z' },
    { id: 'e', state: 'OPEN', severity: 'WARNING', component: 'temperature', node: 'n0-0-1', fault: 'SICK', since: '2026-01-01T00:00:00Z' },
    { id: 'f', state: 'OPEN', severity: 'CRITICAL', component: 'node', node: 'n3-0-1', fault: 'FAILED', since: '2027-01-01T00:00:02Z', acknowledgement: { by: 'operator/alice', time: '', outdated: true } },
  ]
  assert.deepEqual(all.sort(worstFirst).map((i) => incidentWords(i, torusWords)), ['node n3-0-1', 'rack r7', 'host of n2-0-1', 'node n1-0-1', 'cable n0-0-0 X+ n1-0-0', 'temperature of n0-0-1'])
})

test('at a parent, the name of a group fault begins with its region', () => {
  const i = { id: 'west/k3f9-aaaaaaaa', region: 'west', state: 'OPEN', component: 'group', group: 'west/label/rack=r7', fault: 'FAILED' }
  assert.equal(incidentWords(i, torusWords), 'west: rack r7')
  assert.match(causeWords(i, torusWords), /^nodes with rack=r7 have the same fault/)
})

test('the worst part comes first, and a part that is not there last', () => {
  const parts = [['a', 'ABSENT'], ['b', 'NORMAL'], ['c', 'SICK'], ['d', 'NORMAL'], ['e', 'UNKNOWN'], ['f', 'FAILED'], ['g', 'NEW']].map(([name, state]) => ({ name, state }))
  assert.equal(worstPartsFirst(parts).map((p) => p.name).join(''), 'fcebdag')
  assert.equal(parts[0].name, 'a') // the given list stays
})

test('fewer pixels are drawn where that makes a frame shorter, and nowhere else', () => {
  const after = (frame, n = 40) => {
    const p = new Pace()
    for (let i = 0; i < n; i++) p.took(frame(p.sharp, i))
    return p.sharp
  }
  assert.equal(after(() => 16), 1)
  assert.equal(after(() => 33), 1, 'a display of 30 pictures a second is no faster with fewer pixels')
  assert.equal(after((s) => 31 + 36 * s * s), 0.5, 'a processor that draws')
  assert.equal(after((s) => 11 + 25 * s * s), 0.7, 'no fewer than it takes')
  assert.equal(after((s, i) => (i % 3 ? 16 : 200)), 1, 'some long frames are other work')
  assert.equal(after((s, i) => (i % 3 ? 31 + 36 * s * s : 200)), 0.5, 'and hide no gain')
})

test('groups of a moment are those that had begun by then and not ended', () => {
  const group = (rev, time, group, to, size) => ({ rev, time, kind: 'GROUP_CHANGED', group, to, size, cause: 9 })
  const events = [group(1, 1000, 'row/Y=1', 'SICK', 2), group(2, 2000, 'row/Y=1', 'FAILED', 3), group(3, 3000, 'plane/X=0', 'FAILED', 9), group(4, 4000, 'row/Y=1', 'NORMAL', 0)]
  const now = [{ id: 'plane/X=0', kind: 'PLANE', state: 'FAILED', members: ['a'], since: new Date(3000).toISOString() }, { id: 'block/B', kind: 'BLOCK', state: 'FAILED', members: ['b', 'c'], since: new Date(0).toISOString() }]
  const at = (t) => pastGroups(now, events, t).map((g) => `${g.id} ${g.state} ${g.size ?? ''} ${(g.members ?? []).join()}`)
  assert.deepEqual(at(500), ['block/B FAILED  b,c'], 'one that no event tells of stood before all of them')
  assert.deepEqual(at(1500), ['block/B FAILED  b,c', 'row/Y=1 SICK 2 '])
  assert.deepEqual(at(2000), ['block/B FAILED  b,c', 'row/Y=1 FAILED 3 '])
  assert.deepEqual(at(5000), ['plane/X=0 FAILED 9 a', 'block/B FAILED  b,c'])
  assert.deepEqual(pastGroups(now, [...events, group(5, 6000, 'plane/X=0', 'FAILED', 18)], 5000)[0].members, undefined, 'members of now are not those of then')
})

test('marks and warnings of a moment are those that had begun by then and not ended', () => {
  const told = (rev, time, kind, at, part, ended) => ({ rev, time, kind, at, part, ended })
  const m = torus()
  m.flags[0] = 2 // the temperature warns now, as it has since 3000
  m.flags[1] = 1 // under maintenance, as no event tells
  const events = [
    told(1, 1000, 'MAINTENANCE_CHANGED', '0,0,0', ''), told(2, 1500, 'MAINTENANCE_CHANGED', '0,0,0', ''), told(3, 2000, 'MAINTENANCE_CHANGED', '0,0,0', '', true),
    told(4, 2500, 'WARNING_CHANGED', '0,0,0', 'memory', true), told(5, 3000, 'WARNING_CHANGED', '0,0,0', 'temperature'),
  ]
  const at = (t) => [...past(m, events, t).flags].join()
  assert.equal(at(500), '2,1', 'the memory warned before all that is kept')
  assert.equal(at(1200), '3,1')
  assert.equal(at(1700), '3,1', 'a mark that was changed had begun before')
  assert.equal(at(2200), '2,1')
  assert.equal(at(2700), '0,1')
  assert.equal(at(3000), '2,1')
})

test('the last words of a kernel are bounded, and hide nothing', () => {
  const i = { id: 'x', state: 'OPEN', component: 'node', node: 'n1-0-0', kernel: { dead: 'KERNEL_DEAD_YES', why: 'its kernel is dead: two' }, lastWords: 'last kernel words: <img src=x onerror=alert(1)>\u202e\u0007', lastBoot: 'last boot ended by: power loss' }
  assert.deepEqual(deathWords(i), ['its kernel is dead: two', "the machine's last kernel words: <img src=x onerror=alert(1)>??", "the machine's last boot ended by: power loss"])
  assert.deepEqual(deathWords({ id: 'x', state: 'OPEN', component: 'node' }), [])
  assert.equal(plain('x'.repeat(5000)).length, 1024)
  assert.equal(plain('ä'.repeat(1024)), 'ä'.repeat(1024))
})

test('a management controller is shown as lofamoctl shows it', async () => {
  const { controllerWords, sensorWarns } = await load('controller')
  for (const [c, want] of [
    [{ finding: 'POWERED_OFF', health: 'HEALTH_CRITICAL', since: '180s', age: '4s' }, 'Powered off for 180s, read 4s ago, hardware critical'],
    [{ finding: 'POWERED_ON', health: 'HEALTH_GOOD', since: '1s', age: '1s' }, 'Powered on for 1s, read 1s ago'],
    [{ finding: 'CONTROLLER_SILENT', detail: 'no route to host', since: '60s', age: '1s' }, 'The controller is silent for 60s, read 1s ago: no route to host'],
    [{ finding: 'CONTROLLER_ERROR', detail: '401', since: '60s', age: '1s' }, 'Controller error for 60s, read 1s ago: 401'],
    [{ finding: 9, since: '0s', age: '0s' }, 'Finding 9 for 0s, read 0s ago'],
  ]) assert.equal(controllerWords(c, String), want)
  assert.deepEqual(['Inlet 20 °C: OK', 'P12V 12 V: no health stated', 'CPU 1 97 °C: Critical', 'sensors not read: x: OK not'].map(sensorWarns), [false, false, true, true])
})

/** office is an ordinary cluster of five nodes in an L: n1 to n4 in a row, n5 below n1. */
const office = (more = {}) => Model.of({ dims: [4, 2, 1], empty: [5, 6, 7], states: 'NNFNN...', causes: '00900000', flags: '00000000', names: { 0: 'n1', 1: 'n2', 2: 'n3', 3: 'n10', 4: 'n9' }, ordinary: true,
  directions: [0, 1, 2, 3], links: [[0, 0, 4, 5], [1, 1, 4, 5], [1, 0, 4, 5], [3, 1, 4, 5]], masked: [], ...more })

test('an ordinary cluster is shown by racks, in the order in which people count', () => {
  const names = (m) => racks(m).map((k) => [k.name, ...k.ranks.map((r) => m.id(r))].join(' '))
  assert.deepEqual(names(office()), [' n1 n2 n3 n9 n10'])
  assert.deepEqual(names(office({ domainKey: 'rack', domains: { 0: 'r10', 1: 'r9', 2: 'r9' } })), ['rack r9 n2 n3', 'rack r10 n1', ' n9 n10'])
  assert.equal(office().clone().kind.ordinary, true)
  assert.equal(torus().kind.ordinary, false)
})

test('a tile names the faulty links of its node, but not those that a dead neighbour explains', () => {
  assert.deepEqual([...badLinks(office())], [[0, ['link to n2 FAILED']], [1, ['link to n1 FAILED']]])
})

test('the list of events has a line for each cause, and the consequences below it', () => {
  const m = office(), e = (time, at, node, part, to, more = {}) => ({ time, at, node, part, from: 'NORMAL', to, ...more })
  const lines = (events, members = () => []) => folded(m, events, members).map((f) => [f.head, ...f.consequences].map((c) => c.group ?? `${c.node} ${c.part} ${c.to}`))
  const dead = [e(990, '1,0,0', 'n2', 'link/X+', 'FAILED'), e(990, '3,0,0', 'n10', 'link/X-', 'FAILED'), e(1000, '2,0,0', 'n3', 'node', 'FAILED'), e(1000, '2,0,0', 'n3', 'host', 'FAILED')]
  assert.deepEqual(lines(dead), [['n3 node FAILED', 'n2 link/X+ FAILED', 'n10 link/X- FAILED', 'n3 host FAILED']])
  // A cable has two ends. Another cable, another direction of change and another time are other causes.
  assert.deepEqual(lines([e(0, '0,0,0', 'n1', 'link/X+', 'FAILED'), e(1, '1,0,0', 'n2', 'link/X-', 'FAILED'), e(2, '0,0,0', 'n1', 'link/Y+', 'SICK')]), [['n1 link/X+ FAILED', 'n2 link/X- FAILED'], ['n1 link/Y+ SICK']])
  assert.deepEqual(lines([...dead.slice(2), e(2000, '2,0,0', 'n3', 'host', 'NORMAL')]), [['n3 node FAILED', 'n3 host FAILED'], ['n3 host NORMAL']])
  assert.deepEqual(lines([dead[2], e(60_000, '2,0,0', 'n3', 'memory', 'SICK')]), [['n3 node FAILED'], ['n3 memory SICK']])
  // A link that fails again is no consequence of its first failure.
  assert.deepEqual(lines([e(0, '0,0,0', 'n1', 'link/X+', 'FAILED'), e(2500, '0,0,0', 'n1', 'link/X+', 'NORMAL'), e(5000, '0,0,0', 'n1', 'link/X+', 'FAILED')]), [['n1 link/X+ FAILED'], ['n1 link/X+ NORMAL'], ['n1 link/X+ FAILED']])
  // A group's nodes, with their own consequences, are below the group.
  const group = { kind: 'GROUP_CHANGED', group: 'label/rack=r9', to: 'FAILED', time: 1100 }
  assert.deepEqual(lines([...dead, group], () => ['n3']), [['label/rack=r9', 'n2 link/X+ FAILED', 'n10 link/X- FAILED', 'n3 node FAILED', 'n3 host FAILED']])
  assert.deepEqual(lines([...dead, group]).length, 2, 'the members are not known')
})

test('an ordinary cluster has no words of a torus', () => {
  for (const i of [{ component: 'node', fault: 'FAILED' }, { component: 'node', fault: 'SICK' }, { component: 'host', fault: 'FAILED' }, { component: 'dnp', fault: 'FAILED' }, { component: 'dnp', fault: 'SICK' },
    { component: 'link/X+', fault: 'FAILED' }, { component: 'link/X+', fault: 'SICK' }, { component: 'service-network' }, { component: 'group', group: 'partition/n1' }, { component: 'group', group: 'plane/Z=0/LINK' }]) {
    assert.doesNotMatch(causeWords(i, plainWords), /torus|DNP|plane|cable tray|halves|service network/, JSON.stringify(i))
    assert.notEqual(causeWords(i, plainWords), causeWords(i, torusWords))
  }
  assert.equal(groupWords({ id: 'plane/Z=0' }, plainWords), 'nodes together')
  assert.equal(groupWords({ id: 'label/rack=r7/LINK' }, plainWords), 'rack r7, LINK')
  assert.equal(incidentWords({ component: 'link/X+', node: 'n1', peer: 'n2' }, plainWords), 'link n1 – n2')
  assert.equal(partWords({ part: 'link/X+', at: '0,0,0' }, office(), plainWords), 'link to n2')
  assert.equal(partWords({ part: 'host', at: '0,0,0' }, office(), plainWords), 'host')
})
