// The page's copy of the map: a function of the messages that the supervisor sent, without a clock or elements.

import type { Words } from './words'

export type State = 0 | 1 | 2 | 3 | 4
export const UNKNOWN = 1, NORMAL = 2, SICK = 3, FAILED = 4
export const stateNames = ['', 'UNKNOWN', 'NORMAL', 'SICK', 'FAILED'] as const
export const causeNames = ['', '', 'SENSOR', 'PERIPHERAL', 'MEMORY', 'LINK', 'SERVICE_NETWORK', 'DNP', 'HOST', 'NODE', 'BUS'] as const
export const directions = ['X+', 'X-', 'Y+', 'Y-', 'Z+', 'Z-'] as const
export const MAINTENANCE = 1, WARNING = 2, INFERRED = 4, UNREACHABLE = 8

export interface Standing { leader: string; stale: boolean; staleMs: number; revision: number; cutOff: string[] }

/** WholeMap is what /api/map sends: strings with a character for each rank. */
export interface WholeMap {
  revision: number; dims: [number, number, number]; empty?: number[]; states: string; causes: string; flags: string
  names: Record<string, string>; ordinary?: boolean; domainKey?: string; domains?: Record<string, string>; directions: number[]; links: [number, number, number, number][]; masked: [number, number, number, number][]
  spares: { id: string; state: string }[]; standing: Standing; preset: string; halfBoundMs: number; nodeBoundMs: number
}

/** Group is a group fault that stands, as the API has it. */
export interface Group {
  id: string; kind: string; state: string; cause?: string; members?: string[]; size?: number; of?: number; inferred?: number; since?: string; reason?: string; region?: string
}

/** Incident is one fault with its consequences, as the API has it. Absent fields are empty. */
export interface Incident {
  id: string; state: string; severity?: string; node?: string; coord?: string; component: string; cause?: string; peer?: string; group?: string; region?: string; fault?: string
  since?: string; until?: string; summary?: string; runbook?: string; reopened?: number
  kernel?: { dead?: string; why?: string }; lastWords?: string; lastBoot?: string
  verdict?: { time?: string; rule?: string; reason?: string; witnesses?: string[]; singleWitness?: boolean; leader?: string
    evidence?: { observer?: string; kind?: string; state?: string; detail?: string; age?: string }[] }
  consequences?: { node: string; component: string; state: string; reason?: string }[]; consequenceCount?: number
  responses?: { id: string; policy?: string; mode?: string; state?: string; step?: string; result?: string; closed?: string }[]; responseCount?: number
  acknowledgement?: { by: string; time: string; outdated?: boolean }; notes?: { by: string; time: string; text: string }[]
}

/** incidentWords names what is at fault: "node n1-0-1", "cable n0-0-0 X+ n1-0-0", "link n1 – n2", "rack r7", "temperature of n1-0-1". */
export function incidentWords(i: Incident, words: Words): string {
  if (i.group) return groupWords({ id: i.group, region: i.region }, words)
  if (i.component === 'node') return `node ${i.node}`
  if (i.component.startsWith('link/')) return (words.direction ? `cable ${i.node} ${i.component.slice(5)} ${i.peer ?? ''}` : `link ${i.node} – ${i.peer ?? ''}`).trim()
  return `${i.component} of ${i.node}`
}

/** deathWords describes the death of an incident's machine, a sentence each, as lofamoctl does. The last words are hostile text. */
export function deathWords(i: Incident): string[] {
  return [i.kernel?.why, i.lastWords && `the machine's ${i.lastWords}`, i.lastBoot && `the machine's ${i.lastBoot}`].filter((w): w is string => !!w).map(plain)
}

/** plain bounds a text from a machine, and shows its control characters and those that reorder it as "?". */
export function plain(text: string): string {
  const all = [...text.replace(/[\p{Cc}\p{Cf}\u2028\u2029]/gu, '?')]
  return all.length > 1024 ? all.slice(0, 1023).join('') + '…' : all.join('')
}

/** causeWords says which kind of fault an incident is, in the words of lofamoctl status. */
export function causeWords(i: Incident, words: Words): string {
  const failed = i.fault === 'FAILED', [kind, name, cause] = withoutRegion(i.group ?? '', i.region).split('/')
  switch (kind) {
    case '': break
    case 'label': return `nodes with ${name} have the same fault: look for a shared cause, such as power or a switch`
    case 'partition': return words.partition
    default: return kind === 'plane' && cause === 'LINK' ? words.plane : 'neighbouring nodes have the same fault: look for a shared cause, such as power or a switch'
  }
  const part = i.component.split('/')[0]
  switch (part) {
    case 'node': return failed ? words.nodeFailed : words.nodeSick
    case 'host': if (failed) return words.hostFailed
      break
    case 'dnp': case 'dnp-core': return failed ? words.dnpFailed : words.dnpSick
    case 'link': return failed ? words.linkFailed : words.linkSick
    case 'service-network': return words.serviceNetwork
    case 'bus': return 'the path between the two halves of the node is cut; both halves are alive'
    case 'memory': return 'the memory of the host has too many errors'
    case 'peripheral': return 'a peripheral of the host does not work'
    case 'temperature': case 'power': case 'voltage': return `the ${part} is beyond its threshold`
  }
  return i.cause && i.cause !== 'NONE' ? i.cause : 'not known'
}

/** doingWords lists the open responses of an incident. Those of one policy that do the same are one item, with their number. */
export function doingWords(i: Incident): string[] {
  const count = new Map<string, number>()
  for (const r of i.responses ?? []) {
    if (r.closed) continue
    const state = (r.state ?? '').replace('RESPONSE_', '').toLowerCase()
    const words = r.mode === 'OBSERVE_ONLY' ? `policy ${r.policy}: observe-only, nothing is done` : `policy ${r.policy}: ${state}${r.result ? `, ${r.result}` : ''}`
    count.set(words, (count.get(words) ?? 0) + 1)
  }
  return [...count].map(([words, n]) => n > 1 ? `${words} (${n} responses)` : words)
}

/** worstFirst orders incidents: by severity; those that stand before those that recover; those without a person first; the oldest first. */
export function worstFirst(a: Incident, b: Incident): number {
  const weight = (i: Incident) => [Number(i.severity === 'CRITICAL'), Number(i.state === 'OPEN'), Number(!i.acknowledgement || !!i.acknowledgement.outdated), { FAILED: 3, UNKNOWN: 2, SICK: 1 }[i.fault ?? ''] ?? 0]
  const [x, y] = [weight(a), weight(b)]
  for (let k = 0; k < x.length; k++) if (x[k] !== y[k]) return y[k] - x[k]
  return (a.since ?? '').localeCompare(b.since ?? '') || a.id.localeCompare(b.id)
}

/** worstPartsFirst sorts the parts of a node: FAILED, SICK, UNKNOWN, NORMAL, ABSENT. Parts of one state keep their order. */
export function worstPartsFirst<P extends { state?: string }>(parts: P[]): P[] {
  const order = ['FAILED', 'SICK', 'UNKNOWN', 'NORMAL'], weight = (p: P) => (order.indexOf(p.state ?? '') + order.length + 1) % (order.length + 1)
  return [...parts].sort((a, b) => weight(a) - weight(b))
}

/** Change is one event. */
export interface Change {
  rev?: number; kind?: string; node?: string; at?: string; part?: string; from?: string; to?: string; cause?: number; path?: string; ms?: number
  time: number; by?: string; why?: string; single?: boolean; ended?: boolean; group?: string; size?: number; region?: string
}

const letter: Record<string, State> = { U: 1, N: 2, S: 3, F: 4 }

export function stateOf(name: string | undefined): State {
  return name ? letter[name[0]] ?? 0 : 0
}

/** flagWords are the marks of a node in words. */
export function flagWords(f: number): string {
  return [f & MAINTENANCE && 'maintenance', f & WARNING && 'warning', f & INFERRED && 'taken for dead', f & UNREACHABLE && 'unreachable'].filter(Boolean).join(', ')
}

/** Kind is what the reader has: a torus of cables, or an ordinary cluster, whose places only say who watches whom. */
export interface Kind {
  ordinary: boolean
  domainKey: string // the label that groups nodes, such as rack; empty: no node has one
  domains: ReadonlyMap<number, string> // its values, by rank
}
const torus: Kind = { ordinary: false, domainKey: '', domains: new Map() }

const byRank = (all: Record<string, string> = {}) => new Map(Object.entries(all).map(([r, v]) => [Number(r), v]))

/** Model is the states of nodes and of their link ends, by rank (x fastest), and by rank times six and the direction. */
export class Model {
  readonly nodes: Uint8Array // 0: no node is there
  readonly causes: Uint8Array
  flags: Uint8Array
  readonly links: Uint8Array // 0: the torus has none there
  readonly masked: Uint8Array
  constructor(readonly dims: [number, number, number], readonly names: Map<number, string>, arrays?: Pick<Model, 'nodes' | 'causes' | 'flags' | 'links' | 'masked'>,
    readonly empty: ReadonlySet<number> = new Set(), // places of the torus that have no node
    readonly kind: Kind = torus) {

    const n = dims[0] * dims[1] * dims[2]
    this.nodes = arrays?.nodes ?? new Uint8Array(n)
    this.causes = arrays?.causes ?? new Uint8Array(n)
    this.flags = arrays?.flags ?? new Uint8Array(n)
    this.links = arrays?.links ?? new Uint8Array(6 * n)
    this.masked = arrays?.masked ?? new Uint8Array(6 * n)
  }

  static of(m: WholeMap): Model {
    const kind = { ordinary: !!m.ordinary, domainKey: m.domainKey ?? '', domains: byRank(m.domains) }
    const out = new Model(m.dims, byRank(m.names), undefined, new Set(m.empty ?? []), kind)
    for (let r = 0; r < out.nodes.length; r++) {
      out.nodes[r] = letter[m.states[r]] ?? 0
      out.causes[r] = parseInt(m.causes[r], 16)
      out.flags[r] = parseInt(m.flags[r], 16)
      for (const d of m.directions) {
        if (!out.empty.has(r) && out.neighbour(r, d) !== r) out.links[6 * r + d] = NORMAL
      }
    }
    for (const [r, d, s] of m.links) out.links[6 * r + d] = s
    for (const [r, d] of m.masked) {
      out.masked[6 * r + d] = 1
      out.masked[6 * out.neighbour(r, d) + (d ^ 1)] = 1
    }
    return out
  }

  clone(): Model {
    return new Model(this.dims, this.names, {
      nodes: this.nodes.slice(), causes: this.causes.slice(), flags: this.flags.slice(), links: this.links.slice(), masked: this.masked.slice(),
    }, this.empty, this.kind)
  }

  coord(rank: number): [number, number, number] {
    const [x, y] = this.dims
    return [rank % x, Math.floor(rank / x) % y, Math.floor(rank / (x * y))]
  }

  rank(c: readonly [number, number, number]): number {
    return c[0] + this.dims[0] * (c[1] + this.dims[1] * c[2])
  }

  /** neighbour is the next place in a direction that has a node; or the same place if the line has no other node. */
  neighbour(rank: number, d: number): number {
    const c = this.coord(rank), axis = d >> 1, n = this.dims[axis]
    do c[axis] = (c[axis] + (d & 1 ? n - 1 : 1)) % n
    while (this.empty.has(this.rank(c)) && this.rank(c) !== rank)
    return this.rank(c)
  }

  /** span is the number of places from a node to the other end of its link, past empty ones; 1 for a link around the edge, which is drawn as two stubs. */
  span(rank: number, d: number): number {
    const axis = d >> 1, ahead = this.coord(this.neighbour(rank, d))[axis] - this.coord(rank)[axis]
    return Math.max(1, d & 1 ? -ahead : ahead)
  }

  id(rank: number): string {
    const c = this.coord(rank)
    return this.names.get(rank) ?? `n${c[0]}-${c[1]}-${c[2]}`
  }

  /** find takes an id or "x,y,z"; -1: there is none. */
  find(name: string): number {
    const m = /^n?(\d+)[-,](\d+)[-,](\d+)$/.exec(name.trim())
    if (m) {
      const r = this.place(`${m[1]},${m[2]},${m[3]}`)
      if (r >= 0 && (name.includes(',') || this.id(r) === name.trim())) return r
    }
    this.ranks ??= new Map([...this.names].map(([r, id]) => [id, r]))
    return this.ranks.get(name.trim()) ?? -1
  }

  private ranks: Map<string, number> | undefined

  private place(at: string | undefined): number {
    if (!at) return -1
    const c = at.split(',').map(Number) as [number, number, number]
    if (c.length !== 3 || !c.every((v, i) => Number.isInteger(v) && v >= 0 && v < this.dims[i])) return -1
    return this.empty.has(this.rank(c)) ? -1 : this.rank(c)
  }

  /** component says where a change is: of a node, [rank, -1], of a link end [rank, direction]; undefined: of something that the map does not show. */
  private component(c: Change): [number, number] | undefined {
    if (c.kind || !c.part) return undefined
    const r = this.place(c.at)
    if (r < 0) return undefined
    if (c.part === 'node') return [r, -1]
    const d = c.part.startsWith('link/') ? directions.indexOf(c.part.slice(5) as (typeof directions)[number]) : -1
    return d < 0 ? undefined : [r, d]
  }

  /** apply makes a change; false: nothing that is shown has changed. */
  apply(c: Change): boolean {
    const at = this.component(c), to = stateOf(c.to)
    if (!at || !to) return false
    if (at[1] >= 0) {
      if (!this.links[6 * at[0] + at[1]]) return false
      this.links[6 * at[0] + at[1]] = to
    } else {
      this.nodes[at[0]] = to
      this.causes[at[0]] = c.cause ?? 0
      if (to !== UNKNOWN) this.flags[at[0]] &= ~(INFERRED | UNREACHABLE)
    }
    return true
  }

  /** undo takes a change back. A change does not hold the earlier cause: 0. */
  undo(c: Change): void {
    const at = this.component(c), from = stateOf(c.from)
    if (!at || !from) return
    if (at[1] >= 0) {
      if (this.links[6 * at[0] + at[1]]) this.links[6 * at[0] + at[1]] = from
    } else {
      this.nodes[at[0]] = from
      this.causes[at[0]] = 0
      this.flags[at[0]] &= ~(INFERRED | UNREACHABLE)
    }
  }

  /** counts are by state, index 0 for places without a node. */
  counts(): number[] {
    const out = [0, 0, 0, 0, 0]
    for (const s of this.nodes) out[s]++
    return out
  }

  linkCounts(): number[] {
    const out = [0, 0, 0, 0, 0]
    for (const s of this.links) out[s]++
    return out
  }

  /** notNormal are the ranks of nodes that want a look, the gravest first. */
  notNormal(): number[] {
    const out: number[] = []
    for (let r = 0; r < this.nodes.length; r++) if (this.nodes[r] && (this.nodes[r] !== NORMAL || this.flags[r])) out.push(r)
    const weight = (r: number) => [0, 2, 0, 3, 4][this.nodes[r]]
    return out.sort((a, b) => weight(b) - weight(a) || a - b)
  }
}

/** fewNodes is the largest number of nodes for which the drawing names every node. */
export const fewNodes = 30

/** Cable is a link by one of its ends: a rank and a positive direction. */
export interface Cable { rank: number; d: number; state: State }

/** silent reports whether a node's link ends tell nothing about their cables, because the node or its DNP half is dead. */
const silent = (m: Model, r: number) => m.nodes[r] === FAILED || m.nodes[r] === UNKNOWN || causeNames[m.causes[r]] === 'DNP'

/** badCables returns the cables that are broken or sick themselves, in the state of their worse end. It omits the links of dead nodes and halves. */
export function badCables(m: Model): Cable[] {
  const out: Cable[] = []
  for (let i = 0; i < m.links.length; i++) {
    const rank = Math.floor(i / 6), d = i % 6
    if (d & 1 || !m.links[i]) continue
    const to = m.neighbour(rank, d), state = Math.max(m.links[i], m.links[6 * to + d + 1]) as State
    if (state >= SICK && !silent(m, rank) && !silent(m, to)) out.push({ rank, d, state })
  }
  return out
}

/** cableWords names a cable: "n0-0-0 X+ n1-0-0". */
export const cableWords = (m: Model, c: Cable) => `${m.id(c.rank)} ${directions[c.d]} ${m.id(m.neighbour(c.rank, c.d))}`

/** Rack is nodes that share a failure domain. */
export interface Rack { name: string; ranks: number[] }

/** racks orders the nodes of an ordinary cluster as people count: by failure domain, then by name. Nodes without a domain come last. */
export function racks(m: Model): Rack[] {
  const order = new Intl.Collator('en', { numeric: true }).compare
  const by = new Map<string, number[]>()
  for (let r = 0; r < m.nodes.length; r++) {
    if (!m.nodes[r]) continue
    const name = m.kind.domains.has(r) ? `${m.kind.domainKey} ${m.kind.domains.get(r)}` : ''
    by.set(name, [...by.get(name) ?? [], r])
  }
  return [...by].map(([name, ranks]) => ({ name, ranks: ranks.sort((a, b) => order(m.id(a), m.id(b))) }))
    .sort((a, b) => Number(!a.name) - Number(!b.name) || order(a.name, b.name))
}

/** badLinks names the links of a node that are faulty themselves: "link to n2 FAILED". */
export function badLinks(m: Model): Map<number, string[]> {
  const out = new Map<number, string[]>()
  const add = (rank: number, to: number, state: State) => out.set(rank, [...out.get(rank) ?? [], `link to ${m.id(to)} ${stateNames[state]}`])
  for (const c of badCables(m)) {
    const to = m.neighbour(c.rank, c.d)
    add(c.rank, to, c.state)
    add(to, c.rank, c.state)
  }
  return out
}

/** Folded is an event with those that follow from it. */
export interface Folded { head: Change; consequences: Change[] }

const together = 10_000 // milliseconds in which consequences come before or after their cause

/**
 * folded puts the consequences of each event under it: the parts and links of a node under the node's own change, the other end of a link under the
 * first, and the nodes of a group fault under the group's change. members are the ids of a group's nodes. All lists are oldest first.
 */
export function folded(m: Model, events: Change[], members: (group: string) => string[]): Folded[] {
  const well = (c: Change) => !!c.ended || c.to === 'NORMAL'
  const near = (a: Change, b: Change) => Math.abs(a.time - b.time) <= together && well(a) === well(b)
  const groups: [Change, Set<string>][] = [], nodes = new Map<string, Change[]>(), cables = new Map<string, Change[]>()
  const keep = (into: Map<string, Change[]>, key: string, c: Change) => into.set(key, [...into.get(key) ?? [], c])
  for (const c of events) {
    if (c.kind === 'GROUP_CHANGED' && c.group) groups.push([c, new Set(members(c.group))])
    else if (!c.kind && c.part === 'node' && c.node) keep(nodes, c.node, c)
  }
  const nearest = (c: Change, of: Change[] = []) => of.filter((h) => h !== c && near(h, c)).sort((a, b) => Math.abs(a.time - c.time) - Math.abs(b.time - c.time))[0]
  const cause = (c: Change): Change | undefined => {
    if (c.kind || !c.node) return undefined
    if (c.part === 'node') return nearest(c, groups.filter(([, ids]) => ids.has(c.node!)).map(([g]) => g))
    const other = peerOf(c, m), by = nearest(c, nodes.get(c.node)) ?? nearest(c, nodes.get(other))
    if (by || !other) return by
    const key = [c.node, other].sort().join(' '), first = nearest(c, cables.get(key)?.filter((f) => f.node !== c.node))
    if (!first) keep(cables, key, c)
    return first
  }
  const causes = new Map(events.map((c) => [c, cause(c)])), out = new Map<Change, Folded>()
  for (const [c, by] of causes) if (!by) out.set(c, { head: c, consequences: [] })
  for (const c of events) {
    let head = causes.get(c)
    if (!head) continue
    for (let by = causes.get(head); by; by = causes.get(head)) head = by
    out.get(head)!.consequences.push(c)
  }
  return [...out.values()]
}

/** namedNodes are the ranks that the drawing names: all of few, otherwise those that are not normal, the gravest first, and the selected one. */
export function namedNodes(m: Model, selected: number): number[] {
  const bad = m.notNormal(), rest: number[] = []
  const all = m.nodes.length <= fewNodes
  for (let r = 0; r < m.nodes.length; r++) if (m.nodes[r] && (all || r === selected)) rest.push(r)
  return [...new Set([...bad, ...rest])]
}

/** Offer is a plane that shows some (shown) of the nodes and cables that are not normal (all). */
export interface Offer { axis: number; at: number; shown: number; all: number }

/** planeOffer returns the plane that shows most of what is not normal, if the torus is so deep that nodes in front hide those in the middle. */
export function planeOffer(m: Model): Offer | undefined {
  if (m.nodes.length <= fewNodes || m.dims.some((n) => n < 3)) return undefined
  const nodes = m.notNormal().map((r) => m.coord(r)), cables = badCables(m).map((c) => ({ at: m.coord(c.rank), axis: c.d >> 1 }))
  let best: Offer | undefined
  for (let axis = 2; axis >= 0; axis--) { // a plane of constant z first: the one that people draw
    for (let at = 0; at < m.dims[axis]; at++) {
      const shown = nodes.filter((c) => c[axis] === at).length + cables.filter((c) => c.axis !== axis && c.at[axis] === at).length
      if (shown > (best?.shown ?? 0)) best = { axis, at, shown, all: nodes.length + cables.length }
    }
  }
  return best
}

/** past is the map as it was at a time: that of now with every later change taken back. events are oldest first. */
export function past(now: Model, events: Change[], at: number): Model {
  const m = now.clone()
  m.flags = flagsThen(now, events, at)
  let i = events.length - 1
  for (; i >= 0 && events[i].time > at; i--) m.undo(events[i])
  const done = new Set<string>()
  for (; i >= 0; i--) { // the newest change of each node before that time tells its cause
    const c = events[i]
    if (c.kind || c.part !== 'node' || !c.at || done.has(c.at)) continue
    done.add(c.at)
    const r = m.find(c.at)
    if (r >= 0 && m.nodes[r] === stateOf(c.to)) m.causes[r] = c.cause ?? 0
  }
  return m
}

/** flagsThen are the marks and warnings of a time: of what events tell, the last one up to then decides, else the first one after it, which ended or began
 * something; what no event tells of is as it is now. Who was taken for dead, or not reachable, events do not tell. */
function flagsThen(now: Model, events: Change[], at: number): Uint8Array {
  const last = new Map<string, Change>(), then = new Map<string, boolean>() // by rank, what, and part
  for (const c of events) {
    const what = c.kind === 'MAINTENANCE_CHANGED' ? MAINTENANCE : c.kind === 'WARNING_CHANGED' ? WARNING : 0
    const rank = what && c.at ? now.find(c.at) : -1
    if (rank < 0) continue
    const key = `${rank} ${what} ${what === WARNING ? c.part ?? '' : ''}`
    last.set(key, c)
    if (c.time <= at) then.set(key, !c.ended)
    else if (!then.has(key)) then.set(key, Boolean(c.ended))
  }
  const out = now.flags.map((f) => f & (MAINTENANCE | WARNING))
  // What the events themselves explain of now's. The map does not tell of which part a warning is: of two, one of which began before all events that are kept, that one is not shown then.
  for (const [key, c] of last) {
    const [rank, what] = key.split(' ').map(Number)
    if (!c.ended) out[rank] &= ~what
  }
  for (const [key, was] of then) {
    const [rank, what] = key.split(' ').map(Number)
    if (was) out[rank] |= what
  }
  return out
}

/** pastGroups are the group faults that stood at a time, as far as events tell: with their sizes, but without members, which they do not name. Those
 * of now that have stood since before that time have theirs, unless they changed since. */
export function pastGroups(now: Group[], events: Change[], at: number): Group[] {
  const out = new Map<string, Group>()
  for (const g of now) if (!g.since || Date.parse(g.since) <= at) out.set(g.id, g)
  const changed = new Set<string>()
  for (const c of events) {
    if (c.kind !== 'GROUP_CHANGED' || !c.group) continue
    if (c.time > at) { changed.add(c.group); continue }
    if (c.ended || stateOf(c.to) === NORMAL) out.delete(c.group)
    else out.set(c.group, { ...now.find((g) => g.id === c.group), id: c.group, kind: '', state: c.to ?? 'UNKNOWN', cause: causeNames[c.cause ?? 0] || undefined, size: c.size, region: c.region })
  }
  for (const id of changed) {
    const g = out.get(id)
    if (g) out.set(id, { ...g, members: undefined, inferred: undefined })
  }
  return [...out.values()]
}

/** Sample is how many nodes were in which state from a time on. */
export interface Sample { time: number; counts: number[] }

/** course is the counts over time, oldest first, up to the events' first time. */
export function course(now: Model, events: Change[]): Sample[] {
  const m = now.clone(), counts = m.counts(), out: Sample[] = []
  for (let i = events.length - 1; i >= 0; i--) {
    const c = events[i]
    if (c.kind || c.part !== 'node') continue
    const from = stateOf(c.from), to = stateOf(c.to)
    if (!from || from === to) continue
    out.push({ time: c.time, counts: counts.slice() })
    counts[to]--
    counts[from]++
  }
  return out.reverse()
}

const leastSpan = 10_000 // of the timeline, in milliseconds: changes of one second would else fill it, and every tick would move them

/** ends are those of the timeline, in milliseconds since 1970. It ends now, never later: who asks for a moment by its place gets that moment. */
export function ends(events: Change[], now: number): [from: number, to: number] {
  const to = Math.max(now, events.at(-1)?.time ?? 0) // the browser's clock may be behind
  return [Math.min(events[0]?.time ?? to, to - leastSpan), to]
}

/** step is the moment with one change less (-1) or one more (+1) than at; undefined: now. */
export function step(events: Change[], at: number | undefined, by: -1 | 1): number | undefined {
  const shown = events.filter((c) => !c.kind && c.part && stateOf(c.from) && c.from !== c.to)
  if (by < 0) {
    const last = shown.findLast((c) => at === undefined || c.time <= at)
    return last ? last.time - 1 : at
  }
  const next = at === undefined ? -1 : shown.findIndex((c) => c.time > at)
  return next < 0 || shown[next].time === shown.at(-1)!.time ? undefined : shown[next].time
}

/** merged are the events known and those of an answer, which has all from its first to its last revision. */
export function merged(known: Change[], page: Change[]): Change[] {
  const first = page[0]?.rev ?? Infinity, last = page.at(-1)?.rev ?? 0
  return page.length ? [...known.filter((c) => (c.rev ?? 0) < first), ...page, ...known.filter((c) => (c.rev ?? 0) > last)] : known
}

/** Box is from one corner to the other, both inside. */
export type Box = [from: [number, number, number], to: [number, number, number]]

/** boxes frame the members of a group: one box where they fill it, as rows, planes and blocks do, else one for each run of members along X. */
export function boxes(m: Model, ranks: number[]): Box[] {
  const is = new Set(ranks)
  if (!is.size) return []
  const all = [...is].map((r) => m.coord(r)), axis = [0, 1, 2] as const
  const from = axis.map((k) => all.reduce((v, c) => Math.min(v, c[k]), Infinity)) as Box[0], to = axis.map((k) => all.reduce((v, c) => Math.max(v, c[k]), 0)) as Box[1]
  if (axis.reduce<number>((n, k) => n * (to[k] - from[k] + 1), 1) === is.size) return [[from, to]]
  const out: Box[] = []
  for (const r of [...is].sort((a, b) => a - b)) {
    const c = m.coord(r), last = out.at(-1)
    if (last && last[1][0] === c[0] - 1 && last[1][1] === c[1] && last[1][2] === c[2]) last[1] = c
    else out.push([c, c])
  }
  return out
}

/** withoutRegion removes the prefix that a parent of regions adds: "west/label/rack=r7" becomes "label/rack=r7". */
function withoutRegion(id: string, region?: string): string {
  return region && id.startsWith(region + '/') ? id.slice(region.length + 1) : id
}

/** groupWords names a group fault for people: "row/Y=1,Z=2" is "row Y=1,Z=2", or "nodes together" where places say nothing, and
 * "label/rack=r7/LINK" is "rack r7, LINK". */
export function groupWords(g: { id: string; region?: string }, words: Words): string {
  const id = withoutRegion(g.id, g.region)
  const [kind, what, ...more] = id.split('/')
  const name = kind === 'label' ? (what ?? '').replace('=', ' ') : words.geometry || `${kind} ${what ?? ''}`
  return [g.region && id !== g.id ? `${g.region}: ${name}` : name, ...more].join(', ')
}

/** partWords names the part of an event: "link/X+", or "link to n2" where directions say nothing. */
export function partWords(c: Change, m: Model, words: Words): string {
  return words.direction ? c.part ?? '' : (peerOf(c, m) && `link to ${peerOf(c, m)}`) || (c.part ?? '')
}

/** peerOf is the node at the other end of a link of which a change tells, or "". */
function peerOf(c: Change, m: Model): string {
  const r = m.find(c.at ?? ''), d = c.part?.startsWith('link/') ? directions.indexOf(c.part.slice(5) as (typeof directions)[number]) : -1
  return r < 0 || d < 0 ? '' : m.id(m.neighbour(r, d))
}
