import { badge, h, put, span, time } from './dom'
import { Change, causeNames, type Folded, groupWords, type Model, partWords } from './model'
import { wordsOf } from './words'

const words: Record<string, string> = {
  GROUP_CHANGED: 'group fault', WARNING_CHANGED: 'warning', MAINTENANCE_CHANGED: 'maintenance', TOPOLOGY_CHANGED: 'topology', REGION_CHANGED: 'region',
  RECOVERY_CHANGED: 'recovery', STARVATION_CHANGED: 'starvation', MASK_CHANGED: 'mask', DIAGNOSIS_ENDED: 'diagnosis', PROCEDURE_ENDED: 'procedure', POLICY_CHANGED: 'policy',
}

/** eventLine is one event for people; choose and chooseGroup open the page of its subject. */
export function eventLine(c: Change, m: Model, choose?: (node: string) => void, chooseGroup?: (id: string) => void, more?: HTMLElement): HTMLElement {
  const say = wordsOf(m.kind.ordinary)
  const node = c.node ? (choose ? h('button', { class: 'link', onclick: () => choose(c.node!) }, c.node) : c.node) : null
  const group = c.group ? (chooseGroup ? h('button', { class: 'link', onclick: () => chooseGroup(c.group!) }, groupWords({ id: c.group, region: c.region }, say)) : groupWords({ id: c.group, region: c.region }, say)) : null
  const what = c.kind ? words[c.kind] ?? c.kind : c.part === 'node' ? '' : partWords(c, m, say)
  const of = c.kind ? [partWords(c, m, say), c.ended ? 'ended' : ''].filter(Boolean).join(' ') : ''
  const cause = c.cause && c.cause > 1 ? causeNames[c.cause] ?? '' : ''
  return h('li', { 'data-line': `${c.rev} ${c.at} ${c.part}` }, time(c.time), h('span', {}, node, ' ', what ?? '', ' ', group, group ? ' ' : '', of, of ? ' ' : '', c.to && c.from !== c.to ? badge(c.to) : null, cause && c.from !== c.to ? h('span', { class: 'soft' }, ` ${cause}`) : null,
    c.size ? h('span', { class: 'soft' }, ` ${c.size} members`) : null),
    h('span', { class: 'why' }, [c.why, c.by && `by ${c.by}`, c.path && `via ${c.path.toLowerCase()}`, c.ms && `known after ${span(c.ms)}`].filter(Boolean).join(' · ')), more)
}

/** Events is the list of events: a line for each cause, with its consequences folded below it. */
export class Events {
  private readonly opened = new Set<string>() // that a person has unfolded

  /** lines are oldest first; the list shows the newest first. */
  show(into: HTMLElement, m: Model, lines: Folded[], choose: (node: string) => void, chooseGroup: (id: string) => void): void {
    const line = ({ head, consequences: all }: Folded) => eventLine(head, m, choose, chooseGroup, all.length ? this.fold(`${head.rev} ${head.at} ${head.part}`, m, all, choose, chooseGroup) : undefined)
    put(into, lines.length ? h('ul', { class: 'plain events' }, ...lines.toReversed().map(line)) : h('p', { class: 'soft' }, 'No event yet.'))
  }

  private fold(key: string, m: Model, all: Change[], choose: (node: string) => void, chooseGroup: (id: string) => void): HTMLElement {
    const e = h('details', { class: 'fold', open: this.opened.has(key) }, h('summary', {}, `${all.length} ${all.length > 1 ? 'consequences' : 'consequence'}`),
      h('ul', { class: 'plain events' }, ...all.map((c) => eventLine(c, m, choose, chooseGroup))))
    e.addEventListener('toggle', () => { e.open ? this.opened.add(key) : this.opened.delete(key) })
    return e
  }
}
