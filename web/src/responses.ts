import { api, Refused, type Session } from './api'
import { h, put } from './dom'

const plain = (s: string) => s.replace(/^RESPONSE_/, '').replace(/^STEP_/, '').toLowerCase()

/** Responses are those that are open, as the stream tells them. */
export class Responses {
  readonly all = new Map<string, any>()
  breaker: any
  private none = ''
  private asking: { id: string; verb: 'approve' | 'deny'; text: string; error?: string; busy?: boolean } | undefined
  onChange: () => void = () => {}
  constructor(private readonly session: () => Session) {}

  hear(r: any, all: boolean): void {
    if (all) this.all.clear()
    this.none = ''
    for (const x of r.responses ?? []) {
      if (x.closed) this.all.delete(x.id)
      else this.all.set(x.id, x)
    }
    for (const id of r.gone ?? []) this.all.delete(id)
    if (r.breaker) this.breaker = r.breaker
    this.onChange()
  }

  unavailable(why: string): void {
    this.none = why
    this.onChange()
  }

  /** waiting is how many wait for a person. */
  waiting(): number {
    return [...this.all.values()].filter((r) => r.reason === 'approval').length
  }

  show(into: HTMLElement, choose: (node: string) => void): void {
    if (this.none) return put(into, h('p', { class: 'soft' }, this.none))
    const list = [...this.all.values()].sort((a, b) => Number(b.reason === 'approval') - Number(a.reason === 'approval'))
    const focused = (document.activeElement as HTMLElement | null)?.dataset.keep
    put(into,
      list.length ? null : h('p', { class: 'soft' }, 'No response is open.'),
      ...list.map((r) => this.card(r, into, choose)))
    if (focused) into.querySelector<HTMLElement>(`[data-keep="${CSS.escape(focused)}"]`)?.focus()
  }

  private card(r: any, into: HTMLElement, choose: (node: string) => void): HTMLElement {
    const may = this.session().may, again = () => this.show(into, choose)
    const open = r.reason === 'approval', observed = r.mode === 'OBSERVE_ONLY'
    const ask = (verb: 'approve' | 'deny') => () => {
      this.asking = { id: r.id, verb, text: '' }
      again()
      into.querySelector<HTMLElement>(`[data-keep="${CSS.escape(r.id)}"]`)?.focus()
    }
    const steps = (r.steps ?? []).map((s: any, i: number) => h('li', {}, `${s.executor}: ${plain(s.state ?? 'pending')}`, i === (r.step ?? 0) && s.detail ? h('span', { class: 'soft' }, ` ${s.detail}`) : null))
    return h('div', { class: 'card', 'data-response': r.id },
      h('div', {}, h('b', {}, r.policy), ' for ', r.node ? h('button', { class: 'link', onclick: () => choose(r.node) }, r.node) : r.group, r.component && r.component !== 'node' ? ` ${r.component}` : '',
        h('span', { class: 'soft' }, ` ${r.id}`)),
      h('div', {}, open ? h('span', { class: 'pill stale' }, 'wants your word') : h('span', { class: 'pill' }, observed ? 'observe-only' : plain(r.state ?? '')), ' ', open ? '' : r.reason === 'observe-only' ? 'nothing is done' : r.reason ?? '', r.detail && !open ? h('span', { class: 'soft' }, ` ${r.detail}`) : null),
      r.approvalsWanted ? h('div', { class: 'soft' }, `${(r.approvals ?? []).length} of ${r.approvalsWanted} approvals`, (r.approvals ?? []).length ? `: ${r.approvals.map((a: any) => a.subject).join(', ')}` : '') : null,
      h('ul', { class: 'said' }, ...steps),
      open && this.asking?.id === r.id ? this.form(r, into, choose) : open && (may.approve || may.deny) ? h('div', { class: 'row' },
        may.approve && h('button', { class: 'main', onclick: ask('approve'), 'aria-label': `Approve ${r.id}` }, 'Approve…'),
        may.deny && h('button', { onclick: ask('deny'), 'aria-label': `Deny ${r.id}` }, 'Deny…')) : null)
  }

  private form(r: any, into: HTMLElement, choose: (node: string) => void): HTMLElement {
    const a = this.asking!, again = () => this.show(into, choose)
    const send = async () => {
      if (a.busy) return
      a.busy = true
      a.error = undefined
      try {
        await (a.verb === 'approve' ? api.approve(r.id, a.text) : api.deny(r.id, a.text))
        this.asking = undefined
      } catch (e) {
        a.error = e instanceof Refused ? e.message : 'No answer: the outcome is unknown. Check before you try again.'
      }
      a.busy = false
      again()
    }
    const input = h('input', { 'data-keep': r.id, maxlength: 256, 'aria-label': a.verb === 'deny' ? 'Why not (wanted)' : 'Why (may be empty)', placeholder: a.verb === 'deny' ? 'why not' : 'why, if you like',
      oninput: () => { a.text = input.value }, onkeydown: (e: KeyboardEvent) => { if (e.key === 'Enter') void send(); if (e.key === 'Escape') { this.asking = undefined; again() } } })
    input.value = a.text
    return h('div', {}, h('div', { class: 'row' }, input, h('button', { class: 'main', onclick: () => void send() }, a.verb === 'approve' ? 'Approve now' : 'Deny now'),
      h('button', { onclick: () => { this.asking = undefined; again() } }, 'Back')), a.error ? h('p', { role: 'alert' }, a.error) : null)
  }
}
