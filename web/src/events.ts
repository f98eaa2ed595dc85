import { badge, h, span, time } from './dom'
import { Change, causeNames, groupWords } from './model'

const words: Record<string, string> = {
  GROUP_CHANGED: 'group fault', WARNING_CHANGED: 'warning', MAINTENANCE_CHANGED: 'maintenance', TOPOLOGY_CHANGED: 'topology', REGION_CHANGED: 'region',
  RECOVERY_CHANGED: 'recovery', STARVATION_CHANGED: 'starvation', MASK_CHANGED: 'mask', DIAGNOSIS_ENDED: 'diagnosis', PROCEDURE_ENDED: 'procedure', POLICY_CHANGED: 'policy',
}

/** eventLine is one event for people; choose and chooseGroup open the page of its subject. */
export function eventLine(c: Change, choose?: (node: string) => void, chooseGroup?: (id: string) => void): HTMLElement {
  const node = c.node ? (choose ? h('button', { class: 'link', onclick: () => choose(c.node!) }, c.node) : c.node) : null
  const group = c.group ? (chooseGroup ? h('button', { class: 'link', onclick: () => chooseGroup(c.group!) }, groupWords({ id: c.group, region: c.region })) : groupWords({ id: c.group, region: c.region })) : null
  const what = c.kind ? words[c.kind] ?? c.kind : c.part === 'node' ? '' : c.part
  const of = c.kind ? [c.part, c.ended ? 'ended' : ''].filter(Boolean).join(' ') : ''
  const cause = c.cause && c.cause > 1 ? causeNames[c.cause] ?? '' : ''
  return h('li', { 'data-line': `${c.rev} ${c.at} ${c.part}` }, time(c.time), h('span', {}, node, ' ', what ?? '', ' ', group, group ? ' ' : '', of, of ? ' ' : '', c.to && c.from !== c.to ? badge(c.to) : null, cause && c.from !== c.to ? h('span', { class: 'soft' }, ` ${cause}`) : null,
    c.size ? h('span', { class: 'soft' }, ` ${c.size} members`) : null),
    h('span', { class: 'why' }, [c.why, c.by && `by ${c.by}`, c.path && `${c.path.toLowerCase()} rail`, c.ms && `known after ${span(c.ms)}`].filter(Boolean).join(' · ')))
}
