import { h, mark, put } from './dom'
import { badLinks, causeNames, flagWords, type Model, NORMAL, racks, stateNames } from './model'

/** Tiles is an ordinary cluster: a tile for each node, in the rack that it has as a label. The browser lays them out, so no names collide. */
export class Tiles {
  readonly element = h('div', { id: 'tiles', role: 'group' })
  onPick: (rank: number) => void = () => {}
  private model: Model | undefined
  private selected = -1
  private framed = new Set<number>()
  private order: number[] = [] // ranks as they are shown
  private readonly tiles = new Map<number, { tile: HTMLElement; says: string }>()

  show(m: Model): void {
    const places = (of: Model | undefined) => of && JSON.stringify(racks(of).map((k) => [k.name, ...k.ranks.map((r) => [r, of.id(r)])]))
    const changed = places(m) !== places(this.model)
    this.model = m
    if (changed) this.build(m)
    this.paint(m)
  }

  /** frame marks the members of group faults. */
  frame(groups: number[][]): void {
    this.framed = new Set(groups.flat())
    if (this.model) this.paint(this.model)
  }

  select(rank: number): void {
    this.selected = rank
    if (this.model) this.paint(this.model)
    this.tiles.get(rank)?.tile.scrollIntoView({ block: 'nearest' })
    if (this.element.contains(document.activeElement)) this.focus()
  }

  focus(): void { (this.tiles.get(this.selected) ?? this.tiles.get(this.order[0]))?.tile.focus() }

  /** step is the rank to which an arrow key leads; undefined: the key does not move. */
  step(from: number, key: string): number | undefined {
    const i = this.order.indexOf(from), by = { ArrowRight: 1, ArrowLeft: -1 }[key]
    if (by) return this.order[Math.min(Math.max(i + by, 0), this.order.length - 1)]
    if (key !== 'ArrowUp' && key !== 'ArrowDown') return undefined
    const box = (r: number) => this.tiles.get(r)!.tile.getBoundingClientRect()
    if (i < 0) return this.order[0]
    const here = box(from), down = key === 'ArrowDown' ? 1 : -1
    const far = (r: number) => { const b = box(r); return [down * (b.top - here.top), Math.abs(b.left - here.left)] }
    return this.order.filter((r) => far(r)[0] > 1).sort((a, b) => far(a)[0] + 3 * far(a)[1] - far(b)[0] - 3 * far(b)[1])[0] ?? from
  }

  private build(m: Model): void {
    const all = racks(m)
    this.tiles.clear()
    this.order = all.flatMap((k) => k.ranks)
    this.element.classList.toggle('racks', all.length > 1 || !!all[0]?.name)
    put(this.element, all.length ? null : h('p', { class: 'center' }, 'No node has enrolled yet.'), ...all.map(({ name, ranks }) => h('section', { class: 'rack', 'aria-label': name || 'nodes' },
      all.length > 1 || name ? h('h3', {}, name || `no ${m.kind.domainKey}`, h('span', { class: 'soft' }, `, ${ranks.length} ${ranks.length > 1 ? 'nodes' : 'node'}`)) : null,
      h('div', {}, ...ranks.map((r) => {
        const tile = h('button', { 'data-node': m.id(r), onclick: () => this.onPick(r) })
        this.tiles.set(r, { tile, says: '' })
        return tile
      })))))
  }

  private paint(m: Model): void {
    const links = badLinks(m), first = this.tiles.has(this.selected) ? this.selected : this.order[0]
    for (const [r, t] of this.tiles) {
      const state = stateNames[m.nodes[r]], more = [causeNames[m.causes[r]] ?? '', flagWords(m.flags[r]), ...links.get(r) ?? []].filter(Boolean)
      const says = [state, ...more, r === this.selected, r === first, this.framed.has(r)].join()
      if (says === t.says) continue
      t.says = says
      t.tile.className = `tile ${state}${this.framed.has(r) ? ' framed' : ''}`
      t.tile.tabIndex = r === first ? 0 : -1
      t.tile.setAttribute('aria-pressed', String(r === this.selected))
      put(t.tile, mark(state), h('b', {}, m.id(r)), m.nodes[r] === NORMAL ? h('span', { class: 'visually-hidden' }, ` ${state}`) : h('span', { class: 'state' }, ` ${state}`), ...more.map((what) => h('span', { class: 'more' }, what)))
    }
  }
}
