import { api, Refused, type Word } from './api'
import { badge, h, put, seconds, span, time } from './dom'
import { type Controller, controllerWords, sensorWarns } from './controller'
import { directions, Model, groupWords, type Group, plain, worstPartsFirst } from './model'
import { eventLine } from './events'
import { wordsOf } from './words'

const state = (s: unknown) => badge(typeof s === 'string' ? s : 'UNKNOWN')
const when = (t: unknown) => (typeof t === 'string' ? time(Date.parse(t)) : '')

/** showNode fills an element with the present knowledge about a node. */
export async function showNode(into: HTMLElement, model: Model, rank: number, groups: Group[], choose: (rank: number) => void, chooseGroup: (id: string) => void, current: () => boolean): Promise<void> {
  const id = model.id(rank)
  const name = model.coord(rank).join(',')
  const results = await Promise.allSettled([api.node(name), api.history({ node: name }, 60), api.explain({ node: name })])
  if (!current()) return
  const [node, history, why] = results
  if (node.status === 'rejected') {
    put(into, h('h2', {}, id), h('p', { role: 'alert' }, `The supervisor cannot show this node: ${said(node.reason)}`))
    return
  }
  const n = node.value.node
  const explained = h('div')
  if (why.status === 'fulfilled') putExplanation(explained, why.value)
  else put(explained, h('p', { class: 'soft' }, said(why.reason)))
  put(into,
    h('h2', {}, `${n.id} `, state(n.state), ' ', n.cause && n.cause !== 'NONE' ? h('span', { class: 'badge' }, n.cause) : null),
    h('p', { class: 'soft' }, model.kind.ordinary ? '' : `at ${n.coord ?? 'no place'}, `, n.region ? `region ${n.region}, ` : '', n.since ? `${n.state} since ` : '', when(n.since),
      n.age ? `; last sign of life ${span(seconds(n.age) * 1000)} ago` : '; no sign of life'),
    n.inferred && h('p', {}, 'Presumed dead: no living node sees it.'),
    n.unreachable && h('p', {}, 'No living path leads to it.'),
    n.singleWitness && h('p', {}, 'Only one witness: no response that ends work may rest on it.'),
    n.restarting && h('p', {}, `Restarts ${n.restarting.otherUntil ? 'both halves' : `its ${n.restarting.half} half`}, as announced; back at the latest `, when(n.restarting.until)),
    n.stopped && h('p', {}, `Stopped as announced (${n.stopped.reason}); no fault until `, when(n.stopped.until)),
    ...(node.value.machine ?? []).map((w) => h('p', { 'data-machine': '' }, plain(w))),
    n.maintenance && h('p', {}, `Under maintenance by ${n.maintenance.by}: ${n.maintenance.reason}`),
    ...(n.warnings ?? []).map((w: any) => h('p', {}, `Warning, ${w.component}: ${w.reason}`)),
    ...groups.filter((g) => g.members?.includes(n.id)).map((g) => h('p', {}, 'One of a group: ', h('button', { class: 'link', onclick: () => chooseGroup(g.id) }, groupWords(g, wordsOf(model.kind.ordinary))))),
    labels(n.labels),
    h('h3', {}, 'Why'), explained,
    h('h3', {}, 'Parts'), parts(n, explained, name),
    ...controller(n.controller),
    h('h3', {}, 'Registers'), registers(node.value.words, n.registers?.age),
    h('h3', {}, 'Neighbours'), neighbours(model, rank, choose),
    h('h3', {}, 'Evidence'), evidence(n.components ?? []),
    h('h3', {}, 'History'), ...past(history, model))
}

function said(e: unknown): string {
  return e instanceof Refused ? e.message : 'no answer'
}

function labels(l: Record<string, string> | undefined): HTMLElement | null {
  const all = Object.entries(l ?? {})
  return all.length ? h('p', { class: 'mono' }, all.map(([k, v]) => `${k}=${v}`).join('  ')) : null
}

function putExplanation(into: HTMLElement, e: any): void {
  put(into, h('p', {}, h('b', {}, e.component ?? ''), ' ', state(e.state), ' ', e.summary ?? ''), list(e.because, 'because'), list(e.until, 'until'))
}

function list(words: string[] | undefined, what: string): HTMLElement | null {
  return words?.length ? h('div', {}, h('span', { class: 'soft' }, what), h('ul', { class: 'said' }, ...words.map((w) => h('li', {}, w)))) : null
}

/** parts lists the parts of a node, the worst first. Those that the node does not have are folded. */
function parts(n: any, explained: HTMLElement, name: string): HTMLElement {
  const explain = async (component: string) => {
    try {
      putExplanation(explained, await api.explain({ node: name, component }))
    } catch (e) {
      put(explained, h('p', { role: 'alert' }, said(e)))
    }
    explained.scrollIntoView({ block: 'nearest' })
  }
  const table = (list: any[]) => h('table', {}, h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, 'part'), h('th', { scope: 'col' }, 'state'), h('th', { scope: 'col' }, 'rule'))),
    h('tbody', {}, ...list.map((c: any) => h('tr', { 'data-part': c.name },
      h('td', {}, h('button', { class: 'link', onclick: () => void explain(c.name), title: 'explain' }, c.name)),
      h('td', {}, state(c.state)), h('td', { class: 'soft' }, c.reason ?? '', c.flapping ? ', flapping' : '')))))
  const all: any[] = worstPartsFirst(n.components ?? []), absent = all.filter((c) => c.state === 'ABSENT')
  return h('div', {}, table(all.filter((c) => c.state !== 'ABSENT')),
    absent.length ? h('details', { class: 'fold', id: 'absent' }, h('summary', {}, `${absent.length} ${absent.length > 1 ? 'parts' : 'part'} that the node does not have`), table(absent)) : null)
}

/** controller shows the last answer of the node's management controller: its finding, its sensors, those at fault first and marked, and its event log,
 * the newest entry first. */
function controller(c: Controller | undefined): (HTMLElement | null)[] {
  if (!c) return []
  const sensors = c.sensors ?? [], log = [...(c.log ?? [])].reverse()
  return [h('h3', {}, 'Management controller'), h('div', { 'data-controller': '' },
    h('p', {}, h('b', {}, plain(controllerWords(c, (d) => span(seconds(d) * 1000)))), ' ', h('span', { class: 'soft' }, '(evidence, not a verdict)')),
    c.powerFeedSuspected ? h('p', {}, 'Hint: node and controller are both silent: check the power feed.') : null,
    sensors.length ? h('div', {}, h('span', { class: 'soft' }, 'sensors'), h('ul', { class: 'said' }, ...sensors.map((s) => h('li', {}, sensorWarns(s) ? h('b', {}, plain(s)) : plain(s))))) : null,
    log.length ? h('div', {}, h('span', { class: 'soft' }, 'event log, newest first, by its own clock'), h('ul', { class: 'said' }, ...log.map((l) => h('li', {}, plain(l))))) : null)]
}

/** registers shows the fields that are set in each word; a click shows all. */
function registers(words: Word[] | undefined, age: unknown): HTMLElement {
  if (!words?.length) return h('p', { class: 'soft' }, 'None were received since this leader took over.')
  return h('div', {}, ...words.map((w) => {
    const set = w.fields.filter((f) => f.value && f.name !== 'Valid')
    return h('details', { class: 'word', 'data-register': w.address }, h('summary', {}, h('b', {}, w.name), ' ', h('span', { class: 'mono soft' }, w.value), w.error ? h('div', { role: 'alert' }, w.error) : null,
      set.length ? h('ul', { class: 'said' }, ...set.map((f) => h('li', {}, `${f.name}: ${f.text}`))) : h('div', { class: 'soft' }, 'no fault is set in it')),
      h('p', { class: 'soft' }, h('span', { class: 'mono' }, w.address), w.owner ? `, written by the ${w.owner} half` : ''),
      h('table', {}, h('thead', {}, h('tr', {}, ...['bits', 'field', 'value', 'means'].map((t) => h('th', { scope: 'col' }, t)))),
        h('tbody', {}, ...w.fields.map((f) => h('tr', {}, h('td', { class: 'mono' }, f.bits[0] === f.bits[1] ? String(f.bits[0]) : f.bits.join('-')), h('td', {}, f.name), h('td', { class: 'mono' }, String(f.value)), h('td', {}, f.text))))))
  }), age ? h('p', { class: 'soft' }, `heard ${span(seconds(age) * 1000)} ago`) : null)
}

/** showGroup fills an element with a group fault: what its members have in common, why it stands, who they are; of one without a state, which has
 * ended, its history. */
export async function showGroup(into: HTMLElement, model: Model, g: Group, choose: (node: string) => void, current: () => boolean): Promise<void> {
  const [why, history] = await Promise.allSettled([g.state ? api.explain({ group: g.id }) : undefined, api.history({ group: g.id }, 60)])
  if (!current()) return
  const words = wordsOf(model.kind.ordinary)
  const explained = h('div'), members = g.members ?? [], most = 200
  if (why.status === 'rejected') put(explained, h('p', { class: 'soft' }, said(why.reason)))
  else if (why.value) putExplanation(explained, why.value)
  const title = h('h3', {}, 'History')
  if (!g.state) { // that of an event that is over
    put(into, h('h2', {}, groupWords(g, words)), h('p', { class: 'soft' }, 'It has ended.'), title, ...past(history, model))
    return
  }
  put(into, h('h2', {}, `${groupWords(g, words)} `, state(g.state), ' ', g.cause && g.cause !== 'NONE' ? h('span', { class: 'badge' }, g.cause) : null),
    h('p', { class: 'soft' }, groupSize(g), g.since ? `, ${g.state} since ` : '', when(g.since)),
    h('h3', {}, 'Why'), explained,
    h('h3', {}, 'Members'), h('p', { class: 'members' }, ...members.slice(0, most).map((n) => h('button', { class: 'link', onclick: () => choose(n) }, n)), members.length > most ? `and ${members.length - most} more` : null),
    title, ...past(history, model))
}

/** groupSize is how many of how many. */
export function groupSize(g: Group): string {
  return `${g.size ?? 0}${g.of ? ` of ${g.of}` : ''} nodes${g.inferred ? `, ${g.inferred} of them taken for dead` : ''}`
}

function neighbours(m: Model, rank: number, choose: (rank: number) => void): HTMLElement {
  const rows: HTMLElement[] = []
  for (let d = 0; d < 6; d++) {
    const s = m.links[6 * rank + d]
    if (!s) continue
    const to = m.neighbour(rank, d)
    rows.push(h('tr', {}, m.kind.ordinary ? null : h('td', {}, directions[d]), h('td', {}, h('button', { class: 'link', onclick: () => choose(to) }, m.id(to))),
      h('td', {}, badge(['', 'UNKNOWN', 'NORMAL', 'SICK', 'FAILED'][s]), m.masked[6 * rank + d] ? ' masked' : ''), h('td', {}, m.nodes[to] ? badge(['', 'UNKNOWN', 'NORMAL', 'SICK', 'FAILED'][m.nodes[to]]) : '')))
  }
  return h('table', {}, h('thead', {}, h('tr', {}, ...(m.kind.ordinary ? ['node', 'link, this end', 'node is'] : ['', 'node', 'cable, this end', 'node is']).map((t) => h('th', { scope: 'col' }, t)))), h('tbody', {}, ...rows))
}

function evidence(components: any[]): HTMLElement {
  const rows = components.filter((c) => c.state !== 'ABSENT').flatMap((c) => (c.evidence ?? []).map((e: any) => h('tr', {}, h('td', {}, c.name), h('td', {}, e.kind ?? ''), h('td', {}, e.observer ?? '', e.path && e.path !== 'PATH_UNSPECIFIED' ? h('span', { class: 'soft' }, ` by ${e.path}`) : null),
    h('td', {}, state(e.state), e.detail ? h('div', { class: 'soft' }, e.detail) : null), h('td', { class: 'soft' }, e.age ? span(seconds(e.age) * 1000) : ''))))
  if (!rows.length) return h('p', { class: 'soft' }, 'None.')
  return h('table', {}, h('thead', {}, h('tr', {}, ...['part', 'kind', 'by', 'says', 'age'].map((t) => h('th', { scope: 'col' }, t)))), h('tbody', {}, ...rows))
}

function past(history: PromiseSettledResult<Awaited<ReturnType<typeof api.history>>>, m: Model): (HTMLElement | null)[] {
  if (history.status === 'rejected') return [h('p', { class: 'soft' }, said(history.reason))]
  const { events, timeIn } = history.value
  return [
    timeIn?.length ? h('p', { class: 'soft' }, timeIn.filter((t) => t.ms > 0).map((t) => `${t.state} for ${span(t.ms)}`).join(', ')) : null,
    h('ul', { class: 'plain events' }, ...events.map((e) => eventLine(e, m))),
  ]
}

