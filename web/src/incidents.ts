import { api, Refused, type Session } from './api'
import { badge, h, put, span, time } from './dom'
import { causeWords, deathWords, doingWords, type Incident, incidentWords, worstFirst } from './model'
import type { Words } from './words'

/** Incidents are those that are open or recover: each is one fault with its consequences. */
export class Incidents {
  readonly all = new Map<string, Incident>()
  none = '' // why there is no list
  heard = false
  onChange: () => void = () => {}
  private readonly opened = new Set<string>() // parts of cards that a person has unfolded
  private asking: { id: string; text: string; error?: string; busy?: boolean } | undefined

  constructor(private readonly session: () => Session, private readonly now: () => number, private readonly words: () => Words) {}

  hear(r: { incidents?: Incident[]; gone?: string[] }, all: boolean): void {
    if (all) this.all.clear()
    this.none = ''
    this.heard = true
    for (const i of r.incidents ?? []) {
      if (i.state === 'CLOSED') this.all.delete(i.id)
      else this.all.set(i.id, i)
    }
    for (const id of r.gone ?? []) this.all.delete(id)
    this.onChange()
  }

  unavailable(why: string): void {
    this.none = why
    this.onChange()
  }

  /** sorted has the worst first. */
  sorted(): Incident[] { return [...this.all.values()].sort(worstFirst) }

  show(into: HTMLElement, go: { node: (id: string) => void; group: (id: string) => void; mark: (i: Incident) => void; responses: () => void }): void {
    if (this.none) return put(into, h('p', { class: 'soft' }, this.none))
    if (!this.heard) return put(into, h('p', { class: 'soft' }, 'Asking…'))
    const focused = (document.activeElement as HTMLElement | null)?.dataset.keep
    const list = this.sorted()
    put(into, list.length ? null : h('p', { class: 'soft' }, 'No incident is open.'), ...list.map((i) => this.card(i, go, () => this.show(into, go))))
    if (focused) into.querySelector<HTMLElement>(`[data-keep="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true })
  }

  /** age shows how long an element's incident has stood. */
  age(e: HTMLElement): void { put(e, span(Math.max(0, this.now() - Number(e.dataset.since)))) }

  private card(i: Incident, go: Parameters<Incidents['show']>[1], again: () => void): HTMLElement {
    const since = Date.parse(i.since ?? ''), stood = h('span', { 'data-since': since })
    this.age(stood)
    const doing = doingWords(i), n = i.consequenceCount ?? i.consequences?.length ?? 0
    const line = (name: string, ...what: (Node | string | null)[]) => h('p', {}, h('span', { class: 'soft' }, name + ' '), ...what)
    return h('article', { class: `card incident ${i.severity ?? ''}`, 'data-incident': i.id, 'aria-label': incidentWords(i, this.words()) },
      h('h2', {}, badge(i.fault ?? 'UNKNOWN'), ' ', h('button', { class: 'link', 'data-keep': i.id + '/title', title: 'show on the map', onclick: () => go.mark(i) }, incidentWords(i, this.words()))),
      h('div', { class: 'row' }, h('span', { class: 'pill' }, (i.severity ?? '').toLowerCase()), i.state === 'RECOVERING' ? h('span', { class: 'pill stale' }, 'recovering') : null,
        h('span', {}, 'since ', time(since), ', for ', stood), h('span', { class: 'soft mono' }, i.id)),
      i.summary && !i.summary.endsWith(i.verdict?.reason || '?') ? h('p', {}, i.summary) : null,
      line('Cause:', causeWords(i, this.words())),
      i.verdict?.reason ? line('Verdict:', i.verdict.reason) : null,
      ...deathWords(i).map((w) => line('Machine:', w)),
      line('Being done:', doing.length ? null : 'nothing: no response is open'),
      doing.length ? h('ul', { class: 'said' }, ...doing.map((d) => h('li', {}, d)),
        h('li', {}, h('button', { class: 'link', 'data-keep': i.id + '/responses', onclick: () => go.responses() }, 'all responses'))) : null,
      line('What to do:', i.runbook ? h('a', { href: '/runbooks/' + encodeURIComponent(i.runbook), target: '_blank', rel: 'noopener', 'data-keep': i.id + '/runbook' }, `runbook ${i.runbook}`) : null,
        i.runbook ? ', or ' : '', i.node ? h('button', { class: 'link', 'data-keep': i.id + '/node', onclick: () => go.node(i.node!) }, `details of ${i.node}`) : null,
        i.group ? h('button', { class: 'link', 'data-keep': i.id + '/group', onclick: () => go.group(i.group!) }, `details of ${incidentWords(i, this.words())}`) : null),
      i.verdict?.singleWitness ? h('p', {}, 'Only one witness: no response that ends work may rest on it.') : null,
      n ? this.fold(i.id + '/consequences', `${n} ${n > 1 ? 'consequences' : 'consequence'}`, () => [this.consequences(i, n, go.node)]) : null,
      i.verdict ? this.fold(i.id + '/evidence', 'Evidence at the verdict', () => this.evidence(i)) : null,
      ...(i.notes ?? []).map((t) => h('p', { class: 'note' }, h('span', { class: 'soft' }, `${t.by}, `, time(Date.parse(t.time)), ': '), t.text)),
      this.acknowledgement(i, again))
  }

  /** fold hides details until a person asks for them, and keeps them shown while the list is rebuilt. */
  private fold(key: string, title: string, contents: () => (Node | string | null)[]): HTMLElement {
    const summary = h('summary', { 'data-keep': key }, title)
    const e = h('details', { class: 'fold', open: this.opened.has(key) }, summary, ...(this.opened.has(key) ? contents() : []))
    e.addEventListener('toggle', () => {
      if (e.open === this.opened.has(key)) return
      if (e.open) this.opened.add(key)
      else this.opened.delete(key)
      put(e, summary, ...(e.open ? contents() : []))
    })
    return e
  }

  private consequences(i: Incident, n: number, choose: (node: string) => void): HTMLElement {
    const list = i.consequences ?? []
    return h('ul', { class: 'said' }, ...list.map((c) => h('li', {}, h('button', { class: 'link', onclick: () => choose(c.node) }, c.node), ` ${c.component === 'node' ? '' : c.component} `, badge(c.state),
      c.reason ? h('span', { class: 'soft' }, ` ${c.reason}`) : null)), n > list.length ? h('li', {}, `and ${n - list.length} more`) : null)
  }

  private evidence(i: Incident): (Node | string | null)[] {
    const v = i.verdict!
    return [h('p', { class: 'soft' }, `Rule ${v.rule}, by ${v.leader} at `, v.time ? time(Date.parse(v.time)) : '', v.witnesses?.length ? `; witnesses: ${v.witnesses.join(', ')}` : ''),
      v.evidence?.length ? h('ul', { class: 'said' }, ...v.evidence.map((e) => h('li', {}, `${e.observer ?? ''} ${e.kind ?? ''}: `, badge(e.state ?? 'UNKNOWN'), e.detail ? ` ${e.detail}` : '',
        e.age ? h('span', { class: 'soft' }, ` ${span(parseFloat(e.age) * 1000)} old then`) : null))) : null]
  }

  private acknowledgement(i: Incident, again: () => void): HTMLElement | null {
    const a = this.asking?.id === i.id ? this.asking : undefined, may = this.session().may.acknowledge
    const ack = i.acknowledgement, outdated = ack?.outdated
    const has = ack ? h('span', {}, outdated ? `${ack.by} acknowledged it before it escalated, at ` : `${ack.by} has been dealing with it since `, time(Date.parse(ack.time))) : null
    if (!a) {
      const ask = () => {
        this.asking = { id: i.id, text: '' }
        again()
        document.querySelector<HTMLElement>(`[data-keep="${CSS.escape(i.id + '/note')}"]`)?.focus()
      }
      return has || may ? h('div', { class: 'row' }, has, may ? h('button', { 'data-keep': i.id + '/ask', onclick: ask }, has && !outdated ? 'Add a note…' : 'Acknowledge…') : null) : null
    }
    const send = async () => {
      if (a.busy) return
      a.busy = true
      a.error = undefined
      try {
        await api.acknowledge(i.id, a.text)
        this.asking = undefined
      } catch (e) {
        a.error = e instanceof Refused ? e.message : 'No answer: the outcome is unknown. Check before you try again.'
      }
      a.busy = false
      again()
    }
    const input = h('input', { 'data-keep': i.id + '/note', maxlength: 1024, 'aria-label': 'Note (may be empty)', placeholder: 'optional note', oninput: () => { a.text = input.value },
      onkeydown: (e: KeyboardEvent) => {
        if (e.key === 'Enter') void send()
        if (e.key !== 'Escape') return
        e.preventDefault()
        this.asking = undefined
        again()
      } })
    input.value = a.text
    return h('div', {}, h('div', { class: 'row' }, input, h('button', { class: 'main', onclick: () => void send() }, has && !outdated ? 'Add' : 'Acknowledge'), h('button', { onclick: () => { this.asking = undefined; again() } }, 'Back')),
      a.error ? h('p', { role: 'alert' }, a.error) : null)
  }
}
